"""Which GPU a trace was recorded on, and what that GPU can do at best."""

from __future__ import annotations

from tracelens.hardware.gpu import Gpu, find_gpu, list_gpus
from tracelens.hardware.table import TableCell

__all__ = ["TableCell", "Gpu", "find_gpu", "list_gpus"]
