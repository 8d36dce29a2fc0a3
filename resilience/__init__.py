"""The ``laggard`` command: it starts a program on the nodes of an allocation and relaunches it without bad ones.

The folders say where a line runs and what it may touch:

===============  ===========================================================================================
``decision/``    what to do about an event, and which options fit together; pure
``agent/``       runs on every node: starts, watches and ends the processes there
``allocation/``  which nodes there are, and how to start a process on each: this machine, Slurm, ssh
``nodes/``       runs on the primary: the controller's end of each agent, and the program of a launch
``ray/``         everything that imports Ray or starts its processes
``controller/``  runs on the primary: waits for events, asks ``decision/``, ends a launch and begins the next
``record/``      what is kept of a job: what happened, and how its devices did
``views/``       ``laggard status`` and ``laggard top``: a job while it runs
``report/``      ``laggard report``: a job as a page
``command/``     the command line
===============  ===========================================================================================

Public names are loaded on first use, so that a node's agent, which needs few of them, starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard.resilience.errors import (
        AllocationError,
        ClusterError,
        LeftoversError,
        MessageError,
        NodeAddressError,
        NodeDownError,
        ProcessesStillRunningError,
        ProgramError,
        ResourceManagerError,
        UnreachableNodesError,
        UsageError,
    )
    from laggard.resilience.job import Job

__all__ = [
    "AllocationError",
    "ClusterError",
    "Job",
    "LeftoversError",
    "MessageError",
    "NodeAddressError",
    "NodeDownError",
    "ProcessesStillRunningError",
    "ProgramError",
    "ResourceManagerError",
    "UnreachableNodesError",
    "UsageError",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "laggard.resilience.job" if name == "Job" else "laggard.resilience.errors"
    globals()[name] = getattr(import_module(home), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
