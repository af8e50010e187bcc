"""The hidden size where no operator has shapes: by what tensor-parallel ranks send to each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.accounting.words import model as words
from tracelens.attribution import Attribution
from tracelens.attribution.communication import Communication
from tracelens.results import Known, ModelDims
from tracelens.trace import Trace, look_up
from tracelens.words import COMPONENTS, PHASES

_OF_LOSS = [COMPONENTS.index(name) for name in ("logits", "loss")]
_SUMS = 2  # the maximum and the sums of a loss over a split vocabulary


def with_messages(
    dims: ModelDims, trace: Trace, attribution: Attribution, communication: Communication
) -> ModelDims:
    """``dims`` with the hidden size as the quotient of two messages, where no shape tells it.

    Layers sum an activation, tokens x hidden; the loss over a split vocabulary sums numbers of one per token
    (Megatron-LM core/tensor_parallel: mappings.py, cross_entropy.py). Both are of the forward.
    """
    serves = [one.purpose == "tensor parallel" for one in communication.purposes]
    sizes = np.array([call.elements or 0 for call in communication.calls])
    sums = np.array([call.collective == "all_reduce" for call in communication.calls])
    if not any(serves) or not dims.transformer or dims.hidden.value is not None:
        return dims
    forward = attribution.phase[communication.kernel] == PHASES.index("forward")
    rows = np.flatnonzero(np.array(serves)[communication.purpose] & sums[communication.call] & forward)
    of_loss = _behind_logits(trace, attribution, communication.kernel[rows])
    size = sizes[communication.call[rows]]
    layers, loss = Counter(size[~of_loss].tolist()), Counter(size[of_loss].tolist())
    if len(layers) != 1 or len(loss) != 1 or loss.total() < _SUMS:
        return dims
    (activation,), (tokens,) = layers, loss
    if not tokens or activation % tokens or activation == tokens:
        return dims
    why = words.messages(layers.total(), activation, loss.total(), tokens)
    product = Known(None, words.only_tokens(tokens))
    return replace(dims, hidden=Known(activation // tokens, why), sequence=product, micro_batch=product)


def _behind_logits(
    trace: Trace, attribution: Attribution, kernels: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Per communication kernel: is the last attributed computing one before it of the logits or the loss?"""
    order = np.argsort(trace.kernels.ts_ns, kind="stable")
    open_ = [COMPONENTS.index(name) for name in ("communication", "unattributed")]
    component = attribution.component[order]
    at = np.where(np.isin(component, open_), -1, np.arange(len(order)))
    last = look_up(component, np.maximum.accumulate(at))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return np.isin(last[place[kernels]], _OF_LOSS)
