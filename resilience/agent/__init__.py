"""What runs on every node: the agent, and the helpers that it starts.

The agent talks to the controller only, and does not import Ray. The helpers (``detect``, ``reserve_probe``) are
processes of their own that use the state server.

Words: a *task* is a process that an agent starts, a *sidecar* one that outlives launches, a *leftover* a process that
outlived its own; a *channel* is the two streams to the controller, which outlive their connections; the *awake* clock
stops while this process is not scheduled.
"""

import os

__all__ = ["DIALS", "JOINS", "TOGETHER", "own_name"]

DIALS = "--dials"
"""Tells an agent that only a join token comes through its standard input; what it sends first may follow."""

JOINS = "--joins"
"""Tells an agent that it also tells the process that has started it how the job goes. What it sends first follows, for
how many seconds its tasks may save when it is told to end, and for how many it may wait for the other nodes."""

TOGETHER = "--together"
"""Tells a handshake that one command has started it on many nodes, so that it has to say which one it is on."""


def own_name() -> str:
    """Return Slurm's name for this node; empty if Slurm has not started this process."""
    return os.environ.get("SLURMD_NODENAME", "")
