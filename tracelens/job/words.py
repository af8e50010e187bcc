"""What is said of a job's files that are left out, and of what its ranks tell together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.numbers import plural

OTHER_ENDING = "no .json, .json.gz, .json.zst or .summary"
SAVED_REPORT = "a saved report, not a trace"
NO_TRACE = "not a trace"
NO_ANSWER = "nothing answers, or no such file is there"
NO_MEMORY = "not enough memory to read it"
KILLED_TWICE = "its process was killed twice: not enough memory for it?"
NOT_ANALYZED = "could not be analyzed"
NO_STEP = "no whole step"
PIPELINES_DIFFER = "pipelines differ"
STAGE_LAYERS_UNKNOWN = "the layers of a pipeline's stage are not all known"
TRAINS, FORWARD_ONLY = "training", "forward only"
EACH_ALONE = "analyze each alone, or compare two of them with 'tracelens compare'"


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def failed(error: Exception) -> str:
    """A file that no analysis should have failed on."""
    return f"{NOT_ANALYZED}: {_error(error)}"


def worker_failed(error: Exception) -> str:
    """A file whose worker is gone."""
    return f"its worker failed: {_error(error)}"


def other_job(ranks: int | None, most: int | None) -> str:
    """A rank of a job of another size."""
    size = "an unknown number of ranks" if ranks is None else plural(ranks, "rank")
    return f"of another job: of {size}, most files are of one with {most}"


def other_hour(later_s: float) -> str:
    """A rank that was recorded at another time than most."""
    hours = abs(later_s) / 3600
    long = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"
    return f"recorded {long} {'after' if later_s > 0 else 'before'} the others: another run, or other steps"


def not_one_job(one: str, other: str, differ: Mapping[str, tuple[object, object]]) -> str:
    """Two traces of different runs."""
    each = ", ".join(f"{name} ({a}; {b})" for name, (a, b) in differ.items())
    return f"{one} and {other} are not ranks of one job: no collective in common, and they differ in {each}"


def each_a_job(one: str, other: str) -> str:
    """Two runs of one GPU each."""
    return f"{one} and {other} are not ranks of one job: each ran on one GPU alone"


def one_after_another(first: str, then: str) -> str:
    """Two recordings of a process, or of two runs."""
    return f"{then} begins after {first} has ended, and neither says its rank: they are not ranks of one job"


def second_time(rank: int | None, first: str) -> str:
    """A rank that another file holds already."""
    return f"rank {rank} a second time, after {first}"


def cut_off(whole: int, steps: int) -> str:
    """A file that ends too early."""
    return f"cut off: {whole} of {steps} steps are whole"


def per_rank(value: int | None, ranks: int | None) -> str:
    """A size that ranks share."""
    return f"{value} per rank x {ranks} ranks"


def on_stages(layers: Sequence[int]) -> str:
    """Layers of the stages of a pipeline."""
    return f"{' + '.join(map(str, layers))} on the stages of a pipeline"


def ranks_differ(values: Sequence[object]) -> str:
    """A size that is not the same on all ranks."""
    return f"ranks differ: {', '.join(str(value) for value in values)}"
