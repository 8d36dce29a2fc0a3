"""One node's Ray processes: ``ray start``, loaded ahead of its time.

Loading Ray takes a good part of a node's start. So the agent of the node that is next to be swapped in starts this
module early; it waits here, loaded, for its arguments: one JSON list on standard input.

That input stays open as long as the agent lives. Usually the agent ends what is here, and when it was killed, the
controller does. Should both be killed at once, this process is left to do it.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from resilience.processes import end_descendants

__all__ = ["main"]

END_DEADLINE_S = 5.0


def main() -> None:
    """Wait for the arguments, then be ``ray start`` (with ``--block`` it lasts as long as the node)."""
    from ray.scripts import scripts

    line = sys.stdin.readline()
    if line:
        threading.Thread(target=_end_with_the_agent, name="agent-watch", daemon=True).start()
        scripts.cli(args=json.loads(line))


def _end_with_the_agent() -> None:
    sys.stdin.read()
    end_descendants(deadline_s=END_DEADLINE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
