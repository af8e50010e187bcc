"""The GPU that a question without a GPU is answered for."""

from __future__ import annotations

from functools import lru_cache

from tracelens.hardware import words
from tracelens.hardware.gpu import Gpu, find_gpu, list_gpus
from tracelens.hardware.measurements import user_file

_FALLBACK = "h100-sxm"


def default_gpu() -> tuple[Gpu, str]:
    """The GPU that ``tracelens bench`` measured last for this user, else an H100 SXM; and which of the two.

    The sentence is for the user: an answer for an assumed GPU says that it is.
    """
    measured = _written()
    if measured:
        return find_gpu(None, override=max(measured)[1]), words.MEASURED_LAST
    return find_gpu(None, override=_FALLBACK), words.ASSUMED


def named_gpu(name: str | None) -> Gpu:
    """The GPU with this key, without one the default; for what is called in a loop."""
    return default_gpu()[0] if name is None else _named(name)


@lru_cache(maxsize=64)
def _named(name: str) -> Gpu:
    return find_gpu(None, override=name)


def measured_gpus() -> set[str]:
    """Keys of the GPUs that this user has measurements of."""
    return {name for _, name in _written()}


def _written() -> list[tuple[float, str]]:
    """When each of the user's measurements was written, and of which GPU."""
    found = []
    for gpu in list_gpus():
        try:
            found.append((user_file(gpu.name).stat().st_mtime, gpu.name))
        except OSError:
            continue
    return found
