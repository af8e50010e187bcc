"""Before and after a change: two reports in, one comparison out. Knows nothing of how it is shown.

``tracelens.compare(before, after)`` takes analyses, reports, or paths of traces and saved reports.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelens.compare.result import Comparison


class _Callable(ModuleType):
    """The room and the function share their name, so the module can be called."""

    def __call__(self, before: Any, after: Any, *, across: bool = False) -> Comparison:
        from tracelens.compare.load import compare

        return compare(before, after, across=across)


sys.modules[__name__].__class__ = _Callable
