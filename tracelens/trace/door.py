"""The one door from JSON into the tables: what comes through is of the type and range that later rooms hold.

A trace comes from any machine, half-written, edited or made up. A value that cannot be what its field says is
not there (None, or an empty text), and counted, so that the report can say that something was left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from tracelens.trace import words

#: A dimension, an element count, a byte count: more than any memory. Products of four stay finite floats.
LARGEST = 2**48
#: Letters of a name: the longest of CUTLASS and Triton have some thousand.
LONGEST_NAME = 16_000
#: No kernel, operator or range lasts longer (13 days); sums of thousands stay within 64 bits.
LONGEST_NS = 2**50
_DEEPEST = 32  # metadata nested deeper is no metadata
_MOST_GRID = 2**31 - 1  # CUDA's own limit of a grid's x
_SPACE = re.compile(r"[\t\n\r]")
# C0, DEL and C1; surrogates; marks that turn the direction of what follows
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")
_PLAIN = re.compile(r"[ -~]*+")


class Door:
    """Values as they come through, with the number of those that were left out, by kind."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()

    def text(self, value: Any, *, longest: int = LONGEST_NAME) -> str:
        """Text that every output can hold: no control characters, no half characters, no endless line."""
        if not isinstance(value, str):
            self.dropped["text"] += value is not None
            return ""
        if len(value) > longest:
            self.dropped["long text"] += 1
            value = value[: longest - 1] + "…"
        if _PLAIN.fullmatch(value):
            return str(value)
        clean: str = _NO_TEXT.sub("\ufffd", _SPACE.sub(" ", value))
        self.dropped["character"] += "\ufffd" in clean
        return clean

    def count(self, value: Any, *, least: int = 0, most: int = LARGEST) -> int | None:
        """A whole number within its range, also one written as text."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.dropped["number"] += value is not None
        return None

    def dims(self, value: Any) -> list[Any] | None:
        """The sizes, or strides, of each input: a list of counts, of a list of tensors a list of those.

        An input whose sizes cannot be is empty, as one without sizes is: places stay what they are.
        """
        if not isinstance(value, list):
            self.dropped["shape"] += value is not None
            return None
        return [self._sizes(one, 0) for one in value]

    def _sizes(self, value: Any, depth: int) -> list[Any]:
        if isinstance(value, list) and depth < 3:
            if value and all(isinstance(one, list) for one in value):
                return [self._sizes(one, depth + 1) for one in value]
            if all(type(one) is int and 0 <= one <= LARGEST for one in value):
                return value
        self.dropped["shape"] += value is not None
        return []

    def texts(self, value: Any) -> list[str] | None:
        """A list of texts; what is none of them is empty, and so is a list in their place."""
        if not isinstance(value, list):
            self.dropped["text"] += value is not None
            return None
        return [self.text(one) if isinstance(one, str) else "" for one in value]

    def grid(self, value: Any) -> list[int] | None:
        """Three sizes of a launch."""
        if isinstance(value, list) and len(value) == 3 and all(
            type(one) is int and 0 < one <= _MOST_GRID for one in value
        ):  # fmt: skip
            return value
        self.dropped["launch"] += bool(value)
        return None

    def ranks(self, value: Any) -> tuple[int, ...] | None:
        """Numbers of ranks, or one for each rank."""
        if isinstance(value, list) and all(type(one) is int and 0 <= one < 2**31 for one in value):
            return tuple(value)
        return None

    def value(self, value: Any, depth: int = 0) -> Any:
        """Any JSON value with clean text, finite numbers of 64 bits, and an end to its depth."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float) and not math.isfinite(value):
            self.dropped["number"] += 1
            return None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            self.dropped["number"] += 1
            return None
        if isinstance(value, dict | list) and depth >= _DEEPEST:
            self.dropped["metadata"] += 1
            return None
        if isinstance(value, list):
            return [self.value(one, depth + 1) for one in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(one, depth + 1) for key, one in value.items()}
        return value

    def warning(self) -> list[str]:
        """One line on what was left out; none where nothing was."""
        counts = {kind: count for kind, count in self.dropped.items() if count}
        return [words.mended(counts, LONGEST_NAME)] if counts else []
