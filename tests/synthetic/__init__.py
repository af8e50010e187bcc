"""Simulated recordings of transformer training steps with known truth.

>>> from tests.synthetic import ModelSpec, Options, build
>>> trace = build(ModelSpec(hidden=256, heads=4, layers=1, vocab=1000, sequence=128), Options(steps=1))
>>> {row.component for row in trace.truth} >= {"attention.qkv", "mlp.up", "logits", "optimizer"}
True

Everything is simulated: op trees follow what torch 2.13 records of such a model, kernel times come
from the model in tests/synthetic/gpu.py. Nothing here is a measurement.

Conventions of the truth where another reading exists: gradient clipping and zero_grad have the
phase "optimizer"; the batch copy is "memory"/"other"; the .float() before the loss is "loss"; bias
gradients belong to their Linear; layout copies in attention are "attention.other".
"""

from tests.synthetic.spec import Event, ModelSpec, Options, Synthetic, Truth, Where
from tests.synthetic.train import build

__all__ = ["Event", "ModelSpec", "Options", "Synthetic", "Truth", "Where", "build"]
