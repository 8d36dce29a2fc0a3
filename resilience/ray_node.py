"""One node's Ray processes: ``ray start``, loaded ahead of its time.

Loading Ray takes a good part of a node's start. So the agent of the node that is next to be swapped in starts this
module early; it waits here, loaded, for its arguments: one JSON list on standard input.
"""

from __future__ import annotations

import json
import sys

__all__ = ["main"]


def main() -> None:
    """Wait for the arguments, then be ``ray start`` (with ``--block`` it lasts as long as the node)."""
    from ray.scripts import scripts

    line = sys.stdin.readline()
    if line:
        scripts.cli(args=json.loads(line))


if __name__ == "__main__":
    main()
