"""``Trainer(callbacks=[LightningCapture(out="traces")])`` of PyTorch Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from tracelens.capture.manual import TrainingCapture, capture


class LightningCapture(TrainingCapture, Callback):
    """A step is an optimizer step: batches that only accumulate end none. Options as ``capture``'s."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._capture = capture(pl_module, **self._options).__enter__()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if self._capture is not None and trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self._capture.step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._capture is not None:
            self._capture.close(f"the script ended with {type(exception).__name__}")
