"""The work of a worker that the system kills at one rank, each time. Imported by that worker: kept small."""

from __future__ import annotations

import os
import signal
from typing import Any

from tracelens.job.run import RankWork, summarize_file


def killed_at_rank_2(path: str, work: RankWork) -> Any:
    """``summarize_file``, but for one rank."""
    if "rank2" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return summarize_file(path, work)
