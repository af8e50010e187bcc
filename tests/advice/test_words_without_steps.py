"""Where no step is marked no sentence of a check or a finding gives a share or a time of one."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.advice.test_advice_advise import everything
from tracelens.rules import advise

_OF_A_STEP = re.compile(r"(%\)?|\d m?s|µs) (of the |per |a )?step\b|% of the step")


def test_no_share_of_a_step_that_is_not_marked() -> None:
    advice = advise(replace(everything(), marked=False))
    said = [check.why for check in advice.checks]
    for finding in advice.findings:
        said += [finding.title, finding.saw, finding.how, *finding.caveats]
    assert not [text for text in said if _OF_A_STEP.search(text)]
    marked = advise(everything())
    assert any(_OF_A_STEP.search(check.why) for check in marked.checks)
