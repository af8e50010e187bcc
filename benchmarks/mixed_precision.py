"""Mixed precision on the meta device, which has no autocast of its own: weights of 32 bits, products of 16.

Which functions convert to what is the lists of PyTorch's aten/src/ATen/autocast_mode.h (2.13); conversions
stand inside the operator whose inputs they are, as the profiler shows them under autocast of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.hub.recording import Marks
from tests.zoo import parts

#: AT_FORALL_LOWER_PRECISION_FP.
_SHORT = frozenset((
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "scaled_dot_product_attention", "scaled_dot_product_flash_attention",
    "scaled_dot_product_efficient_attention",
))  # fmt: skip
#: AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, and what PyTorch's functions in Python make of those.
_LONG = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm",
    "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "cross_entropy", "binary_cross_entropy_with_logits", "dist", "pdist",
    "cdist", "renorm", "logsumexp", "interpolate", "prod", "softmax", "log_softmax", "cumprod",
    "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "linalg_norm", "norm", "sum",
))  # fmt: skip


class Autocast(TorchFunctionMode):
    """Converts as autocast of CUDA would."""

    def __init__(self) -> None:
        super().__init__()
        self.on = True
        self._weights: dict[int, Tensor] = {}  # converted once, as autocast keeps them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        plain = name.strip("_")
        if not self.on or plain not in _SHORT | _LONG:
            return func(*args, **kwargs)
        dtype = torch.bfloat16 if plain in _SHORT else torch.float32
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if all(x.dtype == dtype or not x.is_floating_point() for x in given):
            return func(*args, **kwargs)
        with parts.call(f"aten::{plain}", *given):
            return func(*self._converted(args, dtype), **self._converted(kwargs, dtype))

    def _converted(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, dict):
            return {key: self._converted(x, dtype) for key, x in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._converted(x, dtype) for x in value)
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.bfloat16):
            return value
        if isinstance(value, nn.Parameter) and dtype == torch.bfloat16:
            if id(value) not in self._weights:
                self._weights[id(value)] = value.to(dtype)
            return self._weights[id(value)]
        return value.to(dtype)

    def switch(self) -> Callable[..., AbstractContextManager[None]]:
        """What ``torch.autocast`` is for a model: of itself it says that it is on, or off."""

        @contextmanager
        def switched(*_: Any, enabled: bool = True, **__: Any) -> Iterator[None]:
            before, self.on = self.on, enabled
            try:
                yield
            finally:
                self.on = before

        return switched


class MixedMarks(Marks):
    """Marks of a model under autocast: what converts is of the function whose inputs it converts."""

    def __enter__(self) -> MixedMarks:
        with ExitStack() as stack:
            mode = stack.enter_context(Autocast())
            stack.enter_context(mock.patch.object(torch, "autocast", mode.switch()))
            stack.enter_context(mock.patch.object(torch, "is_autocast_enabled", lambda *_: mode.on))
            stack.enter_context(mock.patch.object(torch, "get_autocast_dtype", lambda *_: torch.bfloat16))
            super().__enter__()  # type: ignore[no-untyped-call]
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._opened.close()
