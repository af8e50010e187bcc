"""Where the step waits: holistic-trace-analysis (HTA) run on tracelens's own tables.

HTA is the extra ``hta`` and is imported only when asked for (``analyze(waits=True)``, ``--waits``,
``Analysis.waits``). Its loader is not used: it takes minutes where ours takes seconds, rounds times to
microseconds, drops the last step and every kernel whose launch the file does not hold.
"""

from tracelens.hta.frames import WaitFrames, report_waits, wait_frames

__all__ = ["WaitFrames", "report_waits", "wait_frames"]
