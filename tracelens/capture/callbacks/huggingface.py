"""``Trainer(..., callbacks=[HuggingFaceCapture(out="traces")])`` of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tracelens.capture.manual import Capture, capture


class HuggingFaceCapture(TrainerCallback):
    """A step is the trainer's optimizer step, whatever gradient accumulation. Options as ``capture``'s."""

    def __init__(self, **options: Any):
        self._options = options
        self._capture: Capture | None = None

    @property
    def path(self) -> str | None:
        """The trace, once it is written."""
        return self._capture.path if self._capture else None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._capture = capture(*([model] if model is not None else []), **self._options).__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._capture is not None:
            self._capture.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._capture is not None:
            self._capture.close()
