"""How long a GEMM would take on a GPU: predicted from its shape, sharpened by measurements."""

from __future__ import annotations

from tracelens.gemm.predict.gemm import Prediction, predict_gemm
from tracelens.hardware.default import named_gpu

__all__ = ["Prediction", "gemm_time", "predict_gemm"]


def gemm_time(
    m: int, n: int, k: int, *, gpu: str | None = None, dtype: str = "bf16", layout: str = "TN", batch: int = 1
) -> Prediction:
    """Time of one GEMM kernel, out[m,n] = a[m,k] @ b[k,n], ``batch`` times: ``tracelens.gemm`` from Python.

    ``gpu`` is a key of ``tracelens gemm --gpu list``, or "h100", "a100" for the usual part; without one it is
    the command's: the GPU measured last, else an H100 SXM, and the value's ``gpu`` says which. The value has
    ``time_us.low``, ``.mid`` and ``.high`` in microseconds, ``tflops`` at the middle, ``terms``, from which
    the middle follows, and ``unknown``, which says why where there is none. fp8, fp8-block and nvfp4 hold the
    cast of bf16 activations, a term of its own. Raises ``UsageError`` for a GPU that is not in the table,
    ``InputError`` for sizes, types and layouts that do not exist. Source and error of the figures:
    docs/prediction.md.

    >>> import tracelens
    >>> found = tracelens.gemm(4096, 11008, 4096, gpu="h100")
    >>> found.gpu, round(found.time_us.mid / 10) * 10, found.terms[-1][0]
    ('h100-sxm', 470, 'time')
    """
    return predict_gemm(m, n, k, gpu=named_gpu(gpu), batch=batch, dtype=dtype, layout=layout, cast=True)
