"""``python -m resilience.leftovers MARK``: end what a killed agent has left on this node.

The agent's mark is in its environment, and so in that of everything that it ever started. Its folder goes too, as do
those of this user's other jobs that nobody owns any more.
"""

from __future__ import annotations

import contextlib
import sys
import time

import psutil

from resilience.folders import runtime_root, sweep
from resilience.processes import environment_of

__all__ = ["AGENT_MARK", "end_marked", "main"]

AGENT_MARK = "LAGGARD_AGENT"
DEADLINE_S = 5.0
_POLL_S = 0.02


def end_marked(mark: str, deadline_s: float) -> bool:
    """Kill every process that carries a mark; return whether none is left at the deadline."""
    until_s = time.monotonic() + deadline_s
    ending: set[psutil.Process] = set()
    while True:
        marked = {process for process in psutil.process_iter() if _carries(process, mark)}
        # one that is ending loses its environment before it lets go of its files and locks
        ending = {process for process in ending | marked if not _has_ended(process)}
        if not ending:
            return True
        if time.monotonic() > until_s:
            return False
        for process in marked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_POLL_S)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _carries(process: psutil.Process, mark: str) -> bool:
    # a process that has ended and was not collected has no environment any more
    return environment_of(process).get(AGENT_MARK) == mark


def main() -> int:
    """Run on the mark given; the exit code tells whether nothing is left."""
    ended = end_marked(sys.argv[1], DEADLINE_S)
    sweep(runtime_root())
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
