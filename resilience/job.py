"""``Job``: what a program can learn about the job that it is part of, and report to it."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from laggard.kvstore.connection import current_session
from laggard.kvstore.control import Control, NodeRecord

__all__ = ["Job"]

PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """The launch that this process belongs to, and the nodes that it runs on.

    Attributes
    ----------
    launch
        Number of this launch, from 0.
    nodes
        The active nodes, the primary first; each has ``hostname``, ``address`` and ``devices``.
    reserve
        The nodes kept in reserve.
    excluded
        Host names of the excluded nodes.
    """

    launch: int
    nodes: tuple[NodeRecord, ...]
    reserve: tuple[NodeRecord, ...]
    excluded: tuple[str, ...] = ()

    @classmethod
    def current(cls) -> Job:
        """Return the job of this process, which may be the program or any of its workers on any node.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        session = current_session()
        record = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        return cls(record.launch, record.nodes, record.reserve, record.excluded)

    def progress(self, step: float) -> None:
        """Report that the program has reached a step, counted over the whole job and not anew in each launch.

        It is a sign of life for ``--hang-timeout``; and a launch that goes beyond the steps of all before it has made
        progress.

        Cheap to call often: at most one step is sent every quarter of a second, the others are dropped.

        Raises
        ------
        FencedError
            If a later launch has begun: this process should end.
        """
        _reporter().report(step)

    @property
    def restarted(self) -> bool:
        """Whether this is not the first launch."""
        return self.launch > 0

    @property
    def primary(self) -> NodeRecord:
        """The node that runs the state server; it is never excluded."""
        return self.nodes[0]


class _Reporter:
    """Sends the steps of this process, not too often."""

    def __init__(self) -> None:
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._due_s = 0.0

    def report(self, step: float) -> None:
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + PROGRESS_INTERVAL_S
            self._control.tell_progress(step)


@functools.cache
def _reporter() -> _Reporter:
    return _Reporter()
