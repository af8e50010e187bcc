"""Dimensions of the model that the messages between tensor-parallel ranks state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from tracelens.attribution.communication import Communication
from tracelens.job import words
from tracelens.results import Known, ModelDims
from tracelens.trace import Links, Trace, look_up

#: Megatron-LM's loss exchanges one value per token and nothing else (core/tensor_parallel/cross_entropy.py).
_PER_TOKEN = "_VocabParallelCrossEntropy"
_SERVES = "tensor parallel"


def with_messages(model: ModelDims, trace: Trace, links: Links, communication: Communication) -> ModelDims:
    """The model with its hidden size, where no GEMM showed it and two kinds of message do.

    Tensor-parallel ranks exchange activations of tokens x hidden elements, whole ones whatever the degree.
    """
    if model.hidden.value is not None:
        return model
    in_loss = links.is_op & trace.symbols.where(lambda text: text == _PER_TOKEN)[links.name]
    node = links.kernel_node[communication.kernel]
    of_loss = look_up(links.forest.nearest(in_loss), node) >= 0
    serves = np.array([one.purpose == _SERVES for one in communication.purposes], np.bool_)
    tokens: Counter[int] = Counter()
    activations: Counter[int] = Counter()
    for call, loss, exchanged in zip(
        communication.call.tolist(), of_loss.tolist(), serves[communication.purpose].tolist(), strict=True
    ):
        elements = communication.calls[call].elements
        if exchanged and elements is not None:
            (tokens if loss else activations)[elements] += 1
    if len(tokens) != 1 or not activations:
        return model
    (each,), (elements, calls) = tokens, activations.most_common(1)[0]
    every = activations.total()
    if elements % each or elements == each or 2 * calls <= every:
        return model
    return replace(model, hidden=Known(elements // each, words.of_messages(calls, every, elements, each)))
