"""What work costs beside a fixed piece of work done at the same time: no clock of one machine is a limit."""

from __future__ import annotations

import time


def unit() -> float:
    """CPU seconds that a million turns of a plain loop take here and now: about 0.1."""

    def loop() -> float:
        start = time.process_time()
        total = 0
        for at in range(1_000_000):
            total += at * at % 7
        return time.process_time() - start

    return min(loop() for _ in range(3))
