"""What the prediction of a layer of experts says: what is not known, and what could change."""

from __future__ import annotations

BALANCED = "balanced load"


def unmeasured(gpu: str, dtype: str) -> str:
    """A GPU and type without figures of experts."""
    return f"nobody measured experts in {dtype} on {gpu} or another GPU of its architecture"


def off_the_grid(size: int, dtype: str, whole: int) -> str:
    """Rows of so many elements begin off 16 bytes."""
    return f"grouped GEMMs take {dtype} in rows of a multiple of {whole} elements, and not of {size}"


def datasheet_lacks(gpu: str, dtype: str) -> str:
    """A datasheet without one of the figures that the shares are of."""
    return f"the {dtype} peak, the number of SMs or the bandwidth of {gpu} is not known"


def taken_over(source: str) -> str:
    """Figures of another GPU."""
    return f"{source}; taken over from another GPU of the architecture"


def rows_padded_to(multiple: int) -> str:
    """A change of the rounding."""
    return f"rows of each expert padded to {multiple}"


def power_law(exponent: float) -> str:
    """A change of the load."""
    return f"load as a power law of {exponent}"


def capacity_factor(factor: float) -> str:
    """A change of the capacity."""
    return f"capacity factor {factor}: rows above it dropped"


def ep_degree(ep: int) -> str:
    """A change of the expert-parallel degree."""
    return f"EP {ep}, as many tokens per GPU"


def top_k(choices: int) -> str:
    """A change of how many experts a token chooses."""
    return f"top-{choices}"
