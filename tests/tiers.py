"""Which tests `make test` leaves to `make test-all`: those that took long when they were last measured.

``pytest --times FILE`` writes the CPU seconds of every test, child processes included, a line each;
``python -m tests.tiers FILE...`` then writes slow.txt. Of a function with cases that are slow together the
first stays in the fast tier, and every file keeps its cheapest test, so that each room is still looked into;
conftest names the files that share a long setup.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
#: CPU seconds. A function that takes less in all its cases is never slow.
_FUNCTION = 0.6
#: The first case of a slow function stays if it takes less.
_FIRST = 0.7
#: Asked of every change, whatever they take: some seconds of strange inputs.
_ALWAYS = ("tests/fuzz/test_fuzz.py::test_strange_inputs_end_in_an_output_or_in_one_line",)
#: The cheapest test of a file stays if it takes less.
_CHEAPEST = 2.5


def cpu_seconds() -> float:
    """What this process and those it waited for have used so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@cache
def _listed() -> dict[str, bool]:
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.is_file() else []
    return {line.removesuffix(" first stays"): line.endswith(" first stays") for line in lines}


def slow(tests: Iterable[str]) -> list[bool]:
    """For each node id of a collection, in its order, whether it is slow."""
    seen: set[str] = set()
    found = []
    for test in tests:
        function = test.partition("[")[0]
        first = function not in seen
        seen.add(function)
        found.append(function in _listed() and not (first and _listed()[function]))
    return found


def written(times: list[tuple[str, float]]) -> str:
    """The list of slow functions that measured ``times`` give, in the order of the collection."""
    functions: dict[str, list[float]] = defaultdict(list)
    files: dict[str, list[float]] = defaultdict(list)
    for test, seconds in times:
        function = test.partition("[")[0]
        functions[function].append(seconds)
        files[function.partition("::")[0]].append(seconds)
    lines = []
    for function, taken in sorted(functions.items()):
        if sum(taken) < _FUNCTION or function in _ALWAYS:
            continue
        cheapest = min(files[function.partition("::")[0]])
        if taken[0] < _FIRST or taken[0] == cheapest < _CHEAPEST:
            if len(taken) > 1:
                lines.append(f"{function} first stays")
        else:
            lines.append(function)
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write slow.txt from the measured times of the files named on the command line."""
    times: dict[str, float] = {}
    for path in sys.argv[1:]:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            test, seconds = json.loads(line)
            times[test] = seconds
    LIST.write_text(written(list(times.items())), encoding="utf-8")


if __name__ == "__main__":
    main()
