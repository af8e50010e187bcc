"""A live PyTorch process in, one trace file per rank out. The only room that imports torch, and only on use.

``tracelens capture -- train.py`` needs no edit; in one's own loop::

    with tracelens.capture(model, out="traces") as steps:
        for batch in loader:
            train_step(batch)
            steps.step()
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _CaptureRoom(ModuleType):
    """The room and the function share their name, so the module can be called."""

    def __call__(self, *models: Any, **options: Any) -> Any:
        from tracelens.capture.manual import capture

        return capture(*models, **options)

    @property
    def __signature__(self) -> Signature:
        from tracelens.capture.manual import capture

        return signature(capture)


sys.modules[__name__].__class__ = _CaptureRoom
