"""Training steps of ``library.py`` on the meta device, as a GPU's profiler would have written them."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.hub.recording import AnyRewriter
from tests.functions.library import GPTModel, Model
from tests.synthetic.spec import Synthetic
from tests.zoo.capture import Capture, State, profiled
from tests.zoo.program import Launch, Op, parse
from tests.zoo.writing import write

FORWARD = ("_Linear", "_LayerNormLinear", "_LayerNormMLP", "FusedRoPEFunc", "FusedAttnFunc")
FUNCTIONS = {*FORWARD, *(f"{name}Backward" for name in FORWARD)}
_SPACE = "void transformer_engine::"
_SILU = "&(float transformer_engine::silu<float, float>(float, transformer_engine::Empty const&))"
_NORM = (
    f"{_SPACE}normalization::rmsnorm_{{}}_tuned_kernel<transformer_engine::normalization::Kernel_traits<> >"
)
_BENDS = f"{_SPACE}(anonymous namespace)::{{}}gated_act_kernel<8, float, transformer_engine::Empty, {_SILU}>"
_ROPE = f"{_SPACE}fused_rope_{{}}_kernel<__nv_bfloat16>(__nv_bfloat16 const*, int const*, float const*)"
_CORE = "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
#: transformer_engine/common: normalization/, util/vectorized_pointwise.h, fused_rope/; cuDNN. Both ways.
_KERNELS = {
    "norm": (_NORM, "fwd", "bwd"),
    "mlp.activation": (_BENDS, "", "d"),
    "attention.rope": (_ROPE, "forward", "backward"),
    "attention.core": (_CORE, "fprop", "bprop"),
}
_CAST = f"{_SPACE}dispatch::mxfp8::quantize_kernel::quantize_mxfp8_kernel<false, false, false>(CUtensorMap)"


def record(model: Model, *, names: str, shapes: bool = True) -> Synthetic:
    """Two steps; ``names``: "frames", "ranges" or "none"."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            built = GPTModel(model)
            ids = torch.zeros(model.micro_batch, model.sequence, dtype=torch.int64)
    finally:
        torch.set_default_dtype(before)
    capture = Capture(modules={module: name for name, module in built.named_modules()})

    def step() -> None:
        with capture.phase("forward", ""):
            loss = built(ids)
        with capture.phase("backward", ""), capture.frame("torch/_tensor.py(592): backward"):
            loss.backward()

    first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    with capture.listening():
        text = profiled(step)
    last = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    ops = AnyRewriter().rewrite(parse(text, capture.notes, capture.stopped), State())
    hide(ops)
    return write(
        ops, steps=2, first_step=3, names=names, shapes=shapes, ranks=1, seed=0, sequences=(first, last),
        backward=capture.backward_sequences,
    )  # fmt: skip


def hide(ops: list[Op]) -> None:
    """Leave of what a function called only the kernels, under the names that they have in the library."""
    for op in ops:
        if op.name in FUNCTIONS:
            op.launches = [_renamed(launch, op) for launch in _launches(op)]
            op.children = []
        else:
            hide(op.children)


def _launches(op: Op) -> list[Launch]:
    return [launch for child in op.children for launch in _launches(child)] + op.launches


def _renamed(launch: Launch, op: Op) -> Launch:
    name, component = launch.work.name, launch.state.component
    if component in _KERNELS:
        text, *ways = _KERNELS[component]
        name = text.format(ways[op.name.endswith("Backward")])
    elif "neg" in name:  # library.cast
        name = _CAST
    return replace(launch, work=replace(launch.work, name=name))
