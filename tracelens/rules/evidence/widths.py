"""A gated MLP: its width over all ranks, and the widths near it that keep the model's size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.numbers import ms
from tracelens.results import GemmRow
from tracelens.rules.engine.candidate import absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_dimensions, need_shapes
from tracelens.rules.evidence.dimensions import TARGET, Target
from tracelens.rules.evidence.misfits import gated, mlp_parameters
from tracelens.step.alignment import fp32_on_cuda_cores

#: Weights of the model stay within this share, and the width within the second.
_WEIGHTS_FRAC, _WIDTH_FRAC = 0.01, 0.03
#: Multiples that are searched, the first that has one near. 64 elements of bf16 are 128 bytes, the paper's
#: target (arXiv 2401.14489); 8 are the 16 bytes below which kernels fall back.
_GRIDS = (TARGET, 32, 16, 8)
#: Neighbours tried on each side; one simulation takes about a millisecond.
_EACH_SIDE = 6
_MLP = frozenset({"mlp.up", "mlp.gate", "mlp.down"})


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``width`` is of the whole model, ``local`` of each of ``ranks``; ``rows`` have it as a side."""

    local: int
    ranks: int
    rows: list[GemmRow]

    @property
    def width(self) -> int:
        """Of the whole model: ranks that split the layers hold a part each."""
        return self.local * self.ranks

    @property
    def text(self) -> str:
        """``11008, a multiple of 64``."""
        each = f" ({self.local} on each of {self.ranks} ranks)" if self.ranks > 1 else ""
        grid = next((grid for grid in _GRIDS if self.local % grid == 0), None)
        return f"{self.width}{each}, {f'a multiple of {grid}' if grid is not None else 'no multiple of 8'}"

    def near(self, facts: StepFacts) -> list[int]:
        """Multiples near it that ranks divide and that keep the weights, on the coarsest grid with any."""
        for grid in _GRIDS:
            step = grid * self.ranks
            below = range((self.width - 1) // step * step, 0, -step)[:_EACH_SIDE]
            above = range(self.width // step * step + step, 2 * self.width, step)[:_EACH_SIDE]
            found = [one for one in (*below, *above) if self._keeps_weights(facts, one)]
            if found or self.width % step == 0:
                return sorted(found)
        return []

    def _keeps_weights(self, facts: StepFacts, other: int) -> bool:
        far = abs(other / self.width - 1)
        now = facts.step.now if facts.step is not None else None
        weights = now.parameters if now is not None else None
        if now is None or not weights:
            return far <= _WEIGHTS_FRAC
        grown = (replace(now, ffn=other).parameters or weights) / weights - 1
        return far <= _WIDTH_FRAC and abs(grown) <= _WEIGHTS_FRAC

    def parameters(self, facts: StepFacts, goal: Target) -> int | None:
        """Added ones, where the simulation cannot count them: of this rank's slice times the ranks."""
        if facts.step is not None and facts.step.now.parameters is not None:
            return None
        local = mlp_parameters(facts, goal)
        return local * self.ranks if local is not None else None


def need_gated_mlp(facts: StepFacts) -> GatedMlp:
    """Raises ``Answer`` where there is none, or alignment is not what limits it."""
    need_dimensions(facts)
    if facts.model.experts.value is not None:
        raise not_applicable("The MLP is split into experts, each with a width of its own.")
    rows = [row for row in facts.gemms if row.component in _MLP]
    need_shapes(rows, "MLP GEMM row")
    local = facts.model.ffn.value
    if not rows or not local or local < 1:
        parts = [one for one in facts.components if one.component.startswith("mlp.")]
        if not parts:
            raise absent("No MLP was recognised in the step.")
        raise could_not_run(
            f"The MLP takes {ms(sum(one.time_ms_per_step for one in parts))} {facts.per_step}, and its width"
            " is in no GEMM that was recognised: a fused kernel has none."
        )
    if not gated(facts):
        raise absent(
            "The MLP has no gate that was recognised, so its width is not the 8h/3 that this rule is about;"
            " TL102 judges whether it is on the 16-byte grid."
        )
    if all(fp32_on_cuda_cores(row) for row in rows):
        raise not_applicable("The MLP runs in fp32 on CUDA cores: alignment is not what limits it.")
    with_it = [row for row in rows if {local, 2 * local} & {row.m, row.n, row.k}]
    return GatedMlp(local, max(facts.model.tensor_parallel.value or 1, 1), with_it)
