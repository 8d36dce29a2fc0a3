"""The job as a program of it sees it."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from kvstore.control import Control, NodeRecord
from kvstore.session import current_session

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
        The nodes that are kept idle.
    excluded
        Host names that the job goes on without.
    """

    launch: int
    nodes: tuple[NodeRecord, ...]
    reserve: tuple[NodeRecord, ...]
    excluded: tuple[str, ...] = ()

    @classmethod
    def current(cls) -> Job:
        """Return the job of this process, in the program or in any of its workers on any node.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        session = current_session()
        record = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        return cls(record.launch, record.nodes, record.reserve, record.excluded)

    def progress(self, step: float) -> None:
        """Tell that the program has come to a step: a sign of life for ``--hang-timeout``.

        It costs nothing to call this often: four times a second the newest step is sent, the others are left out.

        Raises
        ------
        FencedError
            If a later launch has begun: this process should end.
        """
        _reporter().tell(step)

    @property
    def restarted(self) -> bool:
        """Whether there was a launch before this one."""
        return self.launch > 0

    @property
    def primary(self) -> NodeRecord:
        """The node that holds the state server; it is never excluded."""
        return self.nodes[0]


class _Reporter:
    """Sends this process's steps, not too often."""

    def __init__(self) -> None:
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._due_s = 0.0

    def tell(self, step: float) -> None:
        if (now_s := time.monotonic()) >= self._due_s:
            self._due_s = now_s + PROGRESS_INTERVAL_S
            self._control.tell_progress(step)


@functools.cache
def _reporter() -> _Reporter:
    return _Reporter()
