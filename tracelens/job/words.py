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
each_a_job = "{} and {} are not ranks of one job: each ran on one GPU alone".format
one_after_another = (
    "{1} begins after {0} has ended, and neither says its rank: they are not ranks of one job"
).format
second_time = "rank {} a second time, after {}".format
cut_off = "cut off: {} of {} steps are whole".format
per_rank = "{} per rank x {} ranks".format


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


def on_stages(layers: Sequence[int]) -> str:
    """Layers of the stages of a pipeline."""
    return f"{' + '.join(map(str, layers))} on the stages of a pipeline"


def ranks_differ(values: Sequence[object]) -> str:
    """A size that is not the same on all ranks."""
    return f"ranks differ: {', '.join(str(value) for value in values)}"
