"""A trace cut anywhere gives every event before the cut, and says that something is lost."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.cuts import cut, event_ends, places
from tests.trace.tools import need_shared, small_trace

#: The oldest layout; `python -m benchmarks.cuts` takes all, at more places.
SHARED = ("d7",)


@pytest.mark.parametrize("name", ["", *SHARED])
def test_every_event_before_a_cut_is_kept_and_the_loss_said(tmp_path: Path, name: str) -> None:
    data = gzip.decompress(need_shared(name).read_bytes()) if name else small_trace().text().encode()
    packed, ends = gzip.compress(data, 6), event_ends(data)
    assert len(ends) > 100
    for place, of in places(data, packed, 6, seed=len(data)):
        path = tmp_path / ("cut.json" if of is None else "cut.json.gz")
        assert cut(data, ends, place, path, packed=of) is None


def test_a_reader_that_loses_an_event_is_found(tmp_path: Path) -> None:
    data = small_trace().text().encode()
    ends = event_ends(data)
    assert cut(data, [*ends[:50], ends[50] - 9, *ends[50:]], ends[80], tmp_path / "t.json") is not None
    assert cut(data, ends, ends[80], tmp_path / "t.json") is None
