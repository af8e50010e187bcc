"""What a second trace of the same job lent to this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.trace import Links, Trace

if TYPE_CHECKING:
    from tracelens.attribution.attribute import Attribution


@dataclass(frozen=True, slots=True)
class Loan:
    """Columns over the kernels of the trace that was lent to, and the reference behind them."""

    trace: Trace  # the reference
    links: Links
    attribution: Attribution
    like: npt.NDArray[np.int32]  # row of the reference's kernel that this one repeats; -1
    filled: npt.NDArray[np.bool_]  # its component came from there
    matched: npt.NDArray[np.bool_]  # some kernel of the reference corresponds to it
