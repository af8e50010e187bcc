"""Why there is no figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tracelens.results.described import says

RefusalCode = Literal[
    "stages_wait",  # what pipeline stages send, and how long they wait for each other
    "exchange",  # what ranks send each other
    "not_predicted",  # too much of what a change touches has no prediction
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a figure is not given: programs go by ``code``, people read ``text``."""

    code: RefusalCode
    text: Annotated[str, says("a sentence without capital and full stop")]
    cause: Annotated[str, says("of ``text`` the cause alone, without its figures")]
