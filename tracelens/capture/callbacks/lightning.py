"""``Trainer(callbacks=[LightningCapture(out="traces")])`` of PyTorch Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from tracelens.capture.manual import Capture, capture


class LightningCapture(Callback):
    """A step is an optimizer step: batches that only accumulate end none. Options as ``capture``'s."""

    def __init__(self, **options: Any):
        self._options = options
        self._capture: Capture | None = None
        self._steps = 0

    @property
    def path(self) -> str | None:
        """The trace, once it is written."""
        return self._capture.path if self._capture else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._capture = capture(pl_module, **self._options).__enter__()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if self._capture is not None and trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self._capture.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._capture is not None:
            self._capture.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._capture is not None:
            self._capture.close(f"the script ended with {type(exception).__name__}")
