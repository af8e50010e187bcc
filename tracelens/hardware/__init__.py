"""Which GPU a trace was recorded on, and what that GPU can do at best."""

from tracelens.hardware.gpu import Gpu, find_gpu, list_gpus

__all__ = ["Gpu", "find_gpu", "list_gpus"]
