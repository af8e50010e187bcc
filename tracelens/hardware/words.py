"""What is said of a GPU: which one was taken, and why a figure of it is not known."""

from __future__ import annotations

from collections.abc import Sequence

# --- which GPU was taken: what follows its name -------------------------------------------------------

MEASURED_LAST = "is the one `tracelens bench` measured last"
NVIDIA_ALONE = "only NVIDIA's are known"
ASSUMED = "is assumed: no --gpu was given, and none was measured here"


def usual_part(chip: str, others: Sequence[str]) -> str:
    """A chip's name alone, taken for one of its parts."""
    told = f" (others: {', '.join(others)})" if others else ""
    return f"is what {chip} usually means{told}"


# --- why figures are not known ------------------------------------------------------------------------

_NOTHING = "no peaks, no roofline"
LAPTOP = f"laptop GPUs have other SMs and clocks than the board of the same number: {_NOTHING}"
NOT_IN_TABLE = f"this GPU is not in the table: {_NOTHING}"
other_memory = "the trace reports {:.0f} GB, the table's board has {:g}: bandwidth unknown".format


def mig_slice(profile: str, whole: str) -> str:
    """A slice of a GPU."""
    return (
        f"this is the MIG slice {profile} of {whole}: its part of the compute and bandwidth is not"
        f" in the trace, so {_NOTHING}"
    )


def other_sms(traced: int, title: str, printed: int, *, dropped: bool) -> str:
    """A trace that counts other SMs than the table, with the table's figures ``dropped`` or kept."""
    part = ": a MIG slice or another variant, so no peaks or bandwidth are applied" if dropped else ""
    return f"the trace reports {traced} SMs, a {title} has {printed}{part}"


def unknown(missing: Sequence[str], reason: str) -> str:
    """Figures that the table lacks, and why."""
    return f"{', '.join(missing)} unknown: {reason}"


# --- where measured figures are from ------------------------------------------------------------------

measured_on = "tracelens bench on this GPU, {}".format
gap_taken_out = "the gap of {:.3g} us between calls is taken out of every time".format
