"""The job as a program of it sees it."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.control import Control, NodeRecord
from kvstore.session import current_session

__all__ = ["Job"]


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

    @property
    def restarted(self) -> bool:
        """Whether there was a launch before this one."""
        return self.launch > 0

    @property
    def primary(self) -> NodeRecord:
        """The node that holds the state server; it is never excluded."""
        return self.nodes[0]
