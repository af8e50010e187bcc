"""A rule: its metadata, and a look at the step that gives candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tracelens.rules.engine.candidate import Answer, Candidate
from tracelens.rules.engine.conclude import conclude
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.needs import need_kernels, need_nvidia


class Rule(ABC):
    """One check of a step. Its page, ``docs/rules/ID.md``, says why it costs time."""

    id: ClassVar[str]  # "TL101"
    slug: ClassVar[str]  # "pad-vocabulary"
    title: ClassVar[str]  # what is checked
    #: It judges GEMMs and what runs beside them: without GEMMs or a step time it says nothing.
    of_kernels: ClassVar[bool] = True
    #: ... by what NVIDIA's GPUs and libraries were measured to do, and not by what the trace alone says.
    of_nvidia: ClassVar[bool] = True
    #: Not about kernels and shapes: what it finds is time in which the GPU waits.
    of_waits: ClassVar[bool] = False

    def check(self, facts: StepFacts, /) -> Outcome:
        """The rule's answer for this step; never raises on odd input."""
        try:
            if self.of_kernels:
                need_kernels(facts)
                if self.of_nvidia:
                    need_nvidia(facts)
            candidates, passed = self.look(facts)
        except Answer as answer:
            return answer.outcome
        return conclude(self, facts=facts, candidates=candidates, passed=passed)

    @abstractmethod
    def look(self, facts: StepFacts, /) -> tuple[Sequence[Candidate], str]:
        """Candidates, and what to say where none of them is worth a finding ("" = what each saw).

        Raises ``Answer`` where there is nothing to judge, or all is well.
        """
