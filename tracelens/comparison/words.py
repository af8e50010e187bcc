"""What a comparison says of what changed, of its test, and of what was not compared; nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_pct
from tracelens.results.comparison import StepState

#: What communication holds beside its own time.
WAIT = "holds the wait for the slowest rank, which one rank's trace does not show"
SAME_KERNELS = "same number of kernels, same GEMM shapes"
OTHER_GEMMS = "GEMMs changed"
TOO_FEW_GEMMS = "too few GEMMs did the same work on both sides"
ONLY_BEFORE, ONLY_AFTER = "only before", "only after"
SHAPE_KNOWN, SHAPE_UNKNOWN = "shape known", f"shape {f.UNKNOWN}"

NOT_FOUND_UNCHANGED = "the parameter is as it was"
NOT_LOOKED = "its check could not run on the trace after"
NOT_SHOWN = "the report after does not show the parameter"

SAME_NAME = "another file has this name"
NEITHER = "neither a trace nor a report of 'tracelens analyze --json'"
PARTNER_UNUSABLE = "its partner cannot be used"
NO_TIMES = "times are not compared"
ONE_PAIR = "the only pair of files"
OTHER_MODELS = "the files are of different models: only their pairs are judged"
SLOWEST_RANK = "a step of the job takes as long as it takes on the slowest of its ranks here"
OTHER_STEPS = "the ranks did not record the same steps, so there is no step of the job"
RUNS_ONCE = "each run counts once, with its median step"
NOT_JUDGED = "not judged"
calls = "{} calls {}: {} -> {}".format
different_gpus = "different GPUs ({}; {})".format
generated = "{}: generated, not measured".format
partial = "{}: part of the trace could not be read".format
unmarked = "{}: no step is marked; the whole recording counts as one".format
taken_for_same = "{}: {} unknown, taken for the same".format
different_versions = "analyzed by different versions: {} and {}".format
set_otherwise = "{} is {} now, {} was proposed".format
counted_as = "now counted as {}".format
nothing_usable = "{} holds nothing to compare: {} is {}".format
in_pairs = "{} of {} pairs: {}".format


def test(what: str, *, by_kind: bool, unprofiled: bool) -> str:
    """What test is made, of the times of ``what``."""
    times = "times of runs" if what != "steps" else "steps' times"
    more = ", short with short and long with long" if by_kind else ""
    more = " without the profiler" if unprofiled else more
    return f"Mann-Whitney on the {times}{more}, two-sided"


def tested(state: StepState, sides: tuple[int, int], what: str, practical: float) -> str:
    """What the test over so many steps, or runs, of both sides says."""
    counted = f"{sides[0]} and {sides[1]} {what}"
    if state == "identical":
        return "the same trace twice"
    if state == "too_few_steps":
        return f"{counted} are too few for a test: record 4 on each side at least"
    if state == "no_change":
        return f"{counted} exclude a difference of more than {practical:.0%}"
    if state == "inconclusive":
        return f"{counted} neither show a difference nor exclude one of more than {practical:.0%}"
    return f"{counted} differ by more than they do among themselves"


def mixed(short: tuple[int, int], steps: tuple[int, int]) -> str:
    """Short and long steps in other shares before and after."""
    return (
        f"{short[0]} of {steps[0]} steps before and {short[1]} of {steps[1]} after are short: figures per"
        " step are means over both kinds, so they differ by that alone, and calls of collectives are not"
        " compared"
    )


IN_GRAPHS = "GPU time in CUDA graphs:"


def turned(before: object, after: object, what: str = "") -> str:
    """What something was and is."""
    said = f"{before} -> {after}"
    return f"{what} {said}" if what else said


def sizes(before: str, after: str) -> str:
    """Which sizes of an attention call changed, or both calls where other sizes are known of them.

    >>> sizes("b=4 h=32 s=2048 d=80", "b=4 h=20 s=2048 d=128"), sizes("b=4 s=8", "tokens=32")
    ('h 32 -> 20, d 80 -> 128', 'b=4 s=8 -> tokens=32')
    """
    old, new = ([one.partition("=") for one in said.split(" ")] for said in (before, after))
    if [one[:2] for one in old] != [one[:2] for one in new] or not all(one[1] for one in old):
        return turned(before, after)
    return ", ".join(turned(a[2], b[2], a[0]) for a, b in zip(old, new, strict=True) if a != b)


def not_read(names: list[str], side: str) -> str:
    """Dimensions that ``side`` does not show: "before", "after" or "" for both."""
    where = f"the trace {side}" if side else "either trace"
    it = "it" if len(names) == 1 else "them"
    return f"{f.listed(names)} could not be read from {where}: a change of {it} would not be seen"


def calls_moved(
    collective: str, per: str, many: tuple[float, float], phases: tuple[str, str], purposes: Sequence[str]
) -> str:
    """Calls, of so many, that are in another phase, and what they serve there."""
    serving = f", where they serve {', '.join(purposes)}" if purposes else ""
    how_many = f"{f.count(round(many[0], 2))} of {f.count(round(many[1], 2))}"
    return f"{how_many} {collective} calls {per} moved from {phases[0]} to {phases[1]}{serving}"


def in_phases(calls_by_phase: Sequence[tuple[str, float]]) -> str:
    """Calls per step in each phase."""
    return ", ".join(f"{f.count(round(many, 2))} in {phase}" for phase, many in calls_by_phase) or "none"


def different_dtypes(before: str | None, after: str | None) -> str:
    """Why times cannot be compared."""
    return f"different dtypes (most GEMM time in {before}; in {after})"


def different_worlds(before: int | None, after: int | None) -> str:
    """Why times cannot be compared."""
    return f"different world sizes ({before}; {after})"


def gpu(name: str, sms: int | None) -> str:
    """A GPU with its SMs where they are known."""
    return f"{name}, {sms} SMs" if sms is not None else name


def cut(side: str, steps: Sequence[int]) -> str:
    """Steps that the trace holds a part of."""
    return f"{side}: step {f.integers(steps)} is not whole in the trace"


def long_step(side: str, step: int, took_ms: float, times_median: float) -> str:
    """A step that is no normal one."""
    return f"{side}: step {step} took {f.ms(took_ms)}, {times_median:.1f} times the median"


def long_on_many(side: str, step: int, times_median: float, files: tuple[int, int]) -> str:
    """The same on some of all files."""
    return (
        f"{side}: step {step} took more than {times_median:g} times the median in {files[0]} of {files[1]}"
        " files"
    )


def different_ranks(before: int | None, after: int | None) -> str:
    """Traces of two ranks."""
    old, new = (f.UNKNOWN if one is None else one for one in (before, after))
    return f"different ranks: {old} and {new}"


def placed(side: str, ms: float) -> str:
    """Kernels whose place only the other trace shows."""
    return f"{side}: {f.ms(ms)} of unattributed kernels count where the other trace places the same kernels"


def kernels(frac: float) -> str:
    """Another number of kernels: beside a time it is no reason, for fewer kernels can take longer."""
    return f"number of kernels {signed_pct(frac)}"


def as_all_gemms(frac: float) -> str:
    """A difference that all GEMMs of the same work share."""
    return f"as all GEMMs of the same work ({signed_pct(frac)})"


def elsewhere(kernels: float, *, waits: bool) -> str:
    """A move between rows; ``waits``: its net can be the wait for another rank."""
    said = f"{kernels:.4g} kernels are counted elsewhere now; the difference is the net"
    return f"{said}, which {WAIT}" if waits else said


def several_shapes(names: Sequence[str], left_out: int) -> str:
    """Shapes that stand together."""
    return " + ".join(names) + (f" and {left_out} more" if left_out > 0 else "")


def gemm(name: str, size: str | None, changed: Sequence[str]) -> str:
    """What changed of a GEMM."""
    return f"GEMM {name}{f' {size}' if size else ''}: {', '.join(changed)}"


no_partner = "no file of this {} on the other side".format


def no_files(folder: object, inside: Sequence[str]) -> str:
    """A folder without files to compare, and folders in it."""
    said = f"{folder} holds no trace and no report (.json, .json.gz, .json.zst)"
    if not inside:
        return said
    return f"{said}: its folders are not looked into, give one of them ({', '.join(inside)})"


def strangers(key: str, before: str, after: str) -> str:
    """Two folders of which no files belong together."""
    return f"no file of the one folder has a partner of the same {key} in the other ({before}; {after})"


def of_pairs(said: str, many: int, pairs: int) -> str:
    """What holds of all pairs, or of so many."""
    return said if many == pairs else f"{said} ({many} of {pairs} pairs)"
