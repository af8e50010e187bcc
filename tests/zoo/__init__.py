"""Training steps of many transformer families with known truth, from real PyTorch programs.

>>> from tests.zoo import ZooOptions, record
>>> zoo = record("llama", ZooOptions(names="none"))
>>> {row.component for row in zoo.truth} >= {"attention.qkv", "mlp.gate", "logits", "optimizer"}
True

A model runs at full width on the meta device under torch.profiler, so that operators, shapes, nesting,
autograd numbers and the order of the backward are PyTorch's own; nothing is computed. What CUDA would do
otherwise is put right (tests/zoo/cuda.py), kernels get names and simulated times
(tests/zoo/kernels.py), and the truth comes from the model's own marks (tests/zoo/parts.py).

Conventions of the truth where another reading exists: scale, mask and casts around an unfused softmax are
"attention.softmax"; layout copies inside attention are "attention.other" (not strict where a product asks
for them); the product of gate and up is "mlp.activation"; the dense layer and activation of BERT's head
are "other" (not strict); position tables of rotary embeddings are "attention.rope" (not strict);
T5 counts layers per stack; everything in a mixture that no other word fits is "moe.dispatch";
gradient clipping and zero_grad have the phase "optimizer"; the batch copy is "memory"/"other".
"""

from tests.zoo.dims import Build, Dims
from tests.zoo.families import FAMILIES, Family
from tests.zoo.recording import Program, Zoo, ZooOptions, program_of, record, trace_of

__all__ = [
    "FAMILIES", "Build", "Dims", "Family", "Program", "Zoo", "ZooOptions", "program_of", "record", "trace_of",
]  # fmt: skip
