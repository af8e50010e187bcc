"""Suggestions put to the proof: a report's changes measured on the GPU at hand, beside what was predicted.

from tracelens.measure.verify import read_source, verify
done = verify(read_source("report.json"))   # the current CUDA device
done.write("report.verified.json")

Reads JSON with the standard library alone, for a GPU machine may have nothing but torch.
"""

from tracelens.measure.verify.run import Done, verify
from tracelens.measure.verify.source import Source, read_source

__all__ = ["Done", "Source", "read_source", "verify"]
