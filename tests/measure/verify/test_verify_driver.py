"""``verify`` from its report to its file, on a driver that checks every CUDA call."""

from __future__ import annotations

import pytest

from tests.measure.driver import Driver
from tracelens.measure.devices import open_device
from tracelens.measure.verify import Source, verify
from tracelens.measure.verify.meter import open_meter

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, of a driver that is none among them


def test_suggestions_are_measured_with_their_layers_and_a_step(source: Source, driver: Driver) -> None:
    with open_meter(open_device(), toy=True) as meter:
        done = verify(source, model=True, anyway=True, meter=meter)
    about = done.verification
    assert (about.gpu, about.device, about.software["cuda"]) == ("h200", "NVIDIA H200", "13.0")
    assert done.stopped is None and about.measured >= 3
    assert {about.clocks[when]["sm_mhz"] for when in ("before", "after")} == {1755}
    measured = [one for one in done.verified if one is not None and one.state == "measured"]
    kinds = {whole.what for one in measured for whole in one.wholes if not whole.why}
    assert kinds == {"layer", "logits", "step"}
    assert all(call.kernels_now for one in measured for call in one.calls if not call.why)
    # every batch: held, two events, and the second waited for before the time is read
    batches = "".join({"hold": "h", "event": "e", "wait": "w"}.get(one, "") for one in driver.calls)
    assert batches.replace("heew", "") == ""
    assert "empty_cache" in driver.calls
