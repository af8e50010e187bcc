"""The attribution room: for every GPU event its step, phase, component, layer and module, with evidence."""

from tracelens.attribution.attribute import attribute
from tracelens.attribution.calls import Calls, find_calls
from tracelens.attribution.functions import open_functions
from tracelens.attribution.lend import lent_kernels
from tracelens.attribution.result import Attribution, Loan
from tracelens.attribution.twins import orphans

__all__ = [
    "Attribution", "Calls", "Loan", "attribute", "find_calls", "lent_kernels", "open_functions", "orphans",
]  # fmt: skip
