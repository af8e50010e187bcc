"""``Trainer(..., callbacks=[HuggingFaceCapture(out="traces")])`` of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tracelens.capture.manual import TrainingCapture, capture


class HuggingFaceCapture(TrainingCapture, TrainerCallback):
    """A step is the trainer's optimizer step, whatever gradient accumulation. Options as ``capture``'s."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._capture = capture(*([model] if model is not None else []), **self._options).__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._capture is not None:
            self._capture.step()
