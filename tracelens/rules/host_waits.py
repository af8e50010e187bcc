"""TL122: a GPU that waits for a compilation, at a graph break, for a batch, or for a pageable copy."""

from __future__ import annotations

from tracelens.numbers import count, ms, percent, times
from tracelens.results import HostWait
from tracelens.results.step import HostWork
from tracelens.rules.engine.candidate import Candidate, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC

#: Per kind: an imperative, what was seen while the GPU waited, and lines of a diff.
_SAID: dict[HostWork, tuple[str, str, list[str]]] = {
    "compile": (
        "Compile before the steps that count",
        "torch.compile compiles in the recorded steps",
        ["# what is compiled again, and why: TORCH_LOGS=recompiles", "+ torch.compile(model, dynamic=True)"],
    ),
    "break": (
        "Compile without graph breaks",
        "Compiled code ends at a graph break and goes on after what is not compiled",
        ["# where and why: TORCH_LOGS=graph_breaks", "+ torch.compile(model, fullgraph=True)  # fails there"],
    ),
    "data": (
        "Fetch batches ahead",
        "The loop waits for the DataLoader",
        ["- DataLoader(data, num_workers=0)", "+ DataLoader(data, num_workers=8, prefetch_factor=4)"],
    ),
    "workers": (
        "Fetch batches with more workers",
        "The loop waits for the DataLoader, whose workers are behind",
        [
            "- DataLoader(data, num_workers=n)",
            "+ DataLoader(data, num_workers=2 * n, prefetch_factor=4, persistent_workers=True)",
        ],
    ),
    "pageable": (
        "Copy batches from pinned memory, without waiting",
        "Copies go from pageable memory",
        [
            "- batch = batch.to(device)",
            "+ batch = batch.to(device, non_blocking=True)  # DataLoader(pin_memory=True)",
        ],
    ),
    "fetch": (
        "Fetch results without waiting",
        "Copies go to pageable memory (.item(), .cpu(), print of a tensor)",
        [
            "- total += loss.item()",
            "+ total += loss.detach()  # read once for many steps; large ones: pinned, non_blocking=True",
        ],
    ),
}


class HostWaits(Rule):
    """A GPU that no compilation, graph break, batch or pageable copy keeps waiting."""

    id = "TL122"
    slug = "host-waits"
    title = "Compilations, graph breaks, batches and pageable copies that the GPU waits for"
    of_kernels = False
    of_waits = True

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Name what the CPU does while the GPU waits."""
        if not facts.marked:
            raise not_applicable("No whole step is marked, and what runs between steps is no part of one.")
        if not facts.host_waits:
            raise not_applicable("No compilation, graph break, DataLoader or pageable copy is in the steps.")
        return [_make(wait, facts) for wait in facts.host_waits], ""


def _share(wait_ms: float, facts: StepFacts) -> str:
    """Of the mean step, as the wait is a mean; with its length where the median step is another."""
    mean_ms, median_ms = facts.mean_ms or facts.measured_step_ms or 1.0, facts.measured_step_ms
    said = f"{percent(wait_ms / mean_ms)} of the step"
    return said if median_ms is None or ms(mean_ms) == ms(median_ms) else f"{said}'s {ms(mean_ms)} on average"


def _make(wait: HostWait, facts: StepFacts) -> Candidate:
    title, saw, fix = _SAID[wait.kind]
    copies = wait.kind in ("pageable", "fetch")
    alone = "nothing else runs on the GPU" if copies else "the GPU waits"
    fetches = wait.kind == "fetch"
    behind = ", counted to the next kernel but no longer than the CPU waits" if fetches else ""
    return Candidate(
        name=title[:1].lower() + title[1:],
        title=f"{title}: {ms(wait.ms_per_step)} {facts.per_step}",
        saw=(
            f"{saw}, {times(count(wait.calls_per_step))} {facts.per_step}, and {alone} for"
            f" {ms(wait.ms_per_step)} of it{behind} ({_share(wait.ms_per_step, facts)})."
        ),
        fix=fix,
        caveats=["With the profiler on, the CPU is slower: without it the GPU waits less."],
        confidence="medium",
        effort="code",
        components=["memory"] if copies else [],
        elsewhere_ms=wait.ms_per_step,
        bound_of=f"the time in which this runs{behind}{',' * bool(behind)} and {alone}",
        why=wait.kind if wait.kind not in ("data", "workers") else "",
        evidence={"kind": wait.kind, "wait_ms": wait.ms_per_step, "calls_per_step": wait.calls_per_step},
        parameter_delta=0,
        least=GAIN_FRAC,
    )
