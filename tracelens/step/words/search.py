"""What a search for a faster shape says: its verdict, what it could not search and why; and of the curves."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import capital, ms
from tracelens.results import Estimate

NO_STEP_TIME = "No shape was searched: no step time is known, so no share of a step can be given."
NO_MEASUREMENTS = "No shape was searched: predictions rest on measurements of NVIDIA GPUs."
NO_PEAKS = (
    "No shape was searched: the peaks of this GPU are not known, so no change can be predicted. To judge the"
    " step on another GPU: --gpu NAME."
)
ALL_FIXED = "every size is fixed"
HEADS_FIXED = "heads × head_dim has to stay hidden, and the heads are not searched"
HEADS_UNKNOWN = "heads × head_dim has to stay hidden, and the heads are not known"
NO_LAYERS = "how many layers there are is not known: tracelens suggest TRACE --layers N"
NO_WEIGHTS = f"the weights cannot be kept, for {NO_LAYERS}"
OF_DATA = "how many tokens each expert gets follows from the data"
NO_MEMORY = "memory is not estimated: a size of the model is not known"
NOT_COUNTED = "the weights are not counted: a size of the model is not known"
PACKED = "attention runs on packed sequences, whose lengths no trace holds: its range is wide"

KERNEL_TIME = "kernel time"
PADS_CHECKPOINT = "a trained checkpoint is padded with unused rows"
OTHER_BATCH = "a setting of the run; keep the global batch"
OTHER_SEQUENCE = "settings of the run; sequences of another length hold other text"
WIDER_MLP = "a wider MLP: a trained checkpoint can be padded with zero weights"
OTHER_MODEL = "another architecture, for a model trained from the start"

CURVE_NO_STEP_TIME = "the step time is not known"
CURVE_NO_FORMULAS = "no GEMM of this step is known as a formula of a model's hyper-parameters"
CURVE_NO_PARAMETERS = "no hyper-parameter of this step is known"
CURVE_ALONE = "no other value near the present one fits the rest of the model"
CURVE_UNKNOWN = "it is not known"
ROOM_UNPREDICTED = "whether a larger one fits into the GPU's memory is not predicted"


def _percent(within: float) -> str:
    return f"±{100 * within:g}%"


def claim(title: str, saving_frac: Estimate, *, of: str = "time") -> str:
    """The first pick in one sentence."""
    low, high = saving_frac.low or 0.0, saving_frac.high or 0.0
    return f"{title}: predicted {saving_frac.mid:.1%} less {of} per token ({low:.1%} to {high:.1%})."


def none_faster(tried: int, within: float, worth: float) -> str:
    """Nothing is recommended, as the end of a sentence; ``within``, ``worth``: shares of weights and time."""
    none, sure = ("the only other shape", "is not") if tried == 1 else (f"none of {tried:,} others", "is")
    return (
        f"{none} of its size (weights {_percent(within)}) {sure} sure to be faster by"
        f" {worth:.0%} or more for the same work."
    )


no_usual_degree = "its {} heads divide by no usual degree of tensor parallelism (2, 4, 8)".format


def off_the_grid(components: Sequence[str]) -> str:
    """GEMMs whose rows torch.compile pads and plain PyTorch leaves as they are."""
    return f"rows of its GEMMs ({', '.join(components)}) begin on less than 16 bytes"


already_good = "This shape is already good on the {}: {}".format


def none_sure(none: str, flaws: Sequence[str] = ()) -> str:
    """No shape is surely faster, though not all could be searched, or something speaks against this one."""
    return capital(none) + (f" But {' and '.join(flaws)}." if flaws else "")


def none_judged(tried: int, within: float, gpu: str) -> str:
    """No shape is surely faster, though not all of the present one is known."""
    none, surely = ("The only", "not surely") if tried == 1 else (f"None of {tried:,}", "surely")
    shapes = "shape" if tried == 1 else "shapes"
    return (
        f"{none} other {shapes} within {_percent(within)} of its weights is {surely} faster on the"
        f" {gpu}, but not every GEMM of this one can be judged: see the notes."
    )


def none_on_grid(within: float) -> str:
    """Nothing was there to try."""
    return f"No other shape on the grid keeps the weights within {_percent(within)}: none to compare with."


none_picked = "No shape is picked: {}.".format


def none_searched(why: str, remedy: str | None) -> str:
    """Nothing could be searched."""
    return f"No shape was searched: {why}.{_sentence(remedy)}"


def none_tried(searched: Sequence[str], within: float, size: str, why: str) -> str:
    """Of the sizes that can be searched no other value keeps the weights, and of another, ``why``."""
    none = f"No other {' or '.join(searched)} keeps the weights within {_percent(within)}"
    return f"{none}, and {size} cannot be searched: {why}."


def no_sizes(why: str, remedy: str) -> str:
    """Nothing could be searched, for the trace shows no size of a model."""
    return (
        f"{none_searched(f'no size of a model is known ({why})', remedy)} A configuration can be searched"
        " without a trace: tracelens suggest config.json --gpu NAME."
    )


def with_remedy(why: str, remedy: str | None) -> str:
    """Why a size is not searched, and how to record what is missing."""
    return why if remedy is None else f"{why}.{_sentence(remedy)}".removesuffix(".")


def _sentence(text: str | None) -> str:
    return f" {text[:1].upper()}{text[1:]}." if text else ""


def not_known(source: str) -> str:
    """A size that the trace does not show."""
    return f"not known: {source}"


sequences_unknown = "the {:,} tokens of a micro-batch are not told apart into sequences".format


def weights_unknown(sizes: Sequence[str]) -> str:
    """Weights that cannot be counted."""
    return f"the weights cannot be kept: {', '.join(sizes)} not known"


coarse = "searched hidden and ffn in steps of {}: finer ones are too many to try".format


def losing_degrees(heads: int, degrees: Sequence[int]) -> str:
    """That heads lose degrees of tensor parallelism."""
    return f"{heads} heads no longer divide over {' or '.join(map(str, degrees))} tensor-parallel ranks"


measurements_unusable = "Measurements of this GPU cannot be used: {}".format


without_measurements = "No measurements of the {}: ranges are those of the model".format


def with_measurements(gpu: str, date: str) -> str:
    """A GPU that was measured."""
    return f"Predictions use measurements of the {gpu} of {date or 'an unknown day'}"


gpu_taken = "--gpu {}: the {} {}".format


fit_traced_memory = "shapes have to fit into the {:.1f} GiB that the trace reports of its GPU".format


def searched_around(path: str, *, marked: bool, generated: bool, partial: bool) -> str:
    """A trace that is searched around, with what keeps its step from being a measured one."""
    about = ["generated, not a measurement"] if generated else []
    about += ["partial, the file could not be read whole"] if partial else []
    what = "The step in" if marked else "What was recorded in"
    return f"{what} {path}" + (f" ({'; '.join(about)})" if about else "")


def communication_stays(time_ms: float, per: str) -> str:
    """Time that no candidate changes."""
    return f"communication ({ms(time_ms)} {per})"


def idle_stays(time_ms: float, per: str) -> str:
    """Time that no candidate changes."""
    return f"idle time ({ms(time_ms)} {per})"


def gemms_stay(time_ms: float, per: str) -> str:
    """Time that no candidate changes."""
    return f"GEMMs whose sizes follow from no model dimension ({ms(time_ms)} {per})"


def padded_by_compile(components: Sequence[str]) -> str:
    """GEMMs of which torch.compile leaves less to save."""
    return (
        f"{', '.join(components)}: torch.compile pads these GEMMs by itself and leaves its copies to save,"
        " which are the low end of the range; the middle is plain PyTorch"
    )


less_when_compiled = "{} With torch.compile, which pads by itself, less than half.".format


stays = "{} stays: {}".format


def stays_wide(components: Sequence[str], dtype: str, block: int) -> str:
    """Linear layers that a type of low precision does not take."""
    return f"{', '.join(components)}: in bf16, for {dtype} takes widths in multiples of {block}"


at_its_least = "{}: {}; taken at its least, so savings are at least these".format


pad_vocab = "vocab {} → {} adds {:.2%} to the logits: pad it in any case".format


def curve_waits(busy: float | None) -> str:
    """A step that is mostly idle has no curve per token: its waiting would decide it."""
    waits = "how long it waits for the CPU with other tokens is not known"
    return f"the GPU is busy {busy:.0%} of the step: {waits}"


def curve_gaps(values: int, why: str) -> str:
    """Values of a curve without a prediction, and the most frequent reason where there is one."""
    count = "1 value has" if values == 1 else f"{values} values have"
    return f"{count} no prediction" + (f" ({why})" if why else "")
