"""What the controller and the nodes tell each other about the copy of State, through the state server.

The controller writes a plan; each node does its part, and writes how it stands.  Whether a record counts is for the
layers above: here it is JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.state_copy import ReplicaUser

__all__ = ["CopyAnswer", "CopyPlan", "CopyPlans", "PlannedReplica"]


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """Which node is to have a replica.

    Attributes
    ----------
    host, copy
        The node, and the name of the folder there.
    user
        As which the replica synchronizes.
    """

    host: str
    copy: str
    user: ReplicaUser = field(repr=False)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is to be done.

    Attributes
    ----------
    record
        The record that nodes are to accept; None: none.
    replica
        The replica that is to run; None: none.
    counts
        Name of the copy that counts and makes older ones useless; empty: there is none.
    """

    record: dict[str, Any] | None = None
    replica: PlannedReplica | None = None
    counts: str = ""


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """How a node stands.

    Attributes
    ----------
    promised, accepted
        The highest term that it has promised; term and version of the last record that it has accepted.
    copy
        Name of the copy whose replica runs there; empty: none does.
    complete
        Whether that is complete, and on disk.
    complaint
        Why there is no replica although there should be one.
    """

    promised: int = 0
    accepted: tuple[int, int] = (0, 0)
    copy: str = ""
    complete: bool = False
    complaint: str = ""


class CopyPlans:
    """Plans and answers of one job.

    Parameters
    ----------
    client, endpoint
        Connection to the state server, and the job on it.
    """

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self._client = client
        self._plans, self._answers = endpoint.key("copy", "plans"), endpoint.key("copy", "answers")

    def clear(self) -> None:
        """Delete what an earlier controller has left."""
        self._client.delete(self._plans, self._answers)

    def write(self, plan: CopyPlan) -> None:
        """Replace the plan."""
        self._client.xadd(self._plans, {"plan": json.dumps(asdict(plan))}, maxlen=1, approximate=False)

    def newer(self, after: str, wait_s: float) -> tuple[str, CopyPlan] | None:
        """Wait for a plan that is newer than the one with this id, and return its id and itself; None: there is none.

        Parameters
        ----------
        after
            Id of a plan; ``0``: any is newer.
        wait_s
            How long to wait, in seconds.
        """
        found = cast("Any", self._client.xread({self._plans: after}, block=max(1, int(1000 * wait_s))))
        if not found:
            return None
        name, fields = found[0][1][-1]
        plan = json.loads(fields[b"plan"])
        replica = plan["replica"]
        if replica is not None:
            replica = PlannedReplica(replica["host"], replica["copy"], ReplicaUser(**replica["user"]))
        return name.decode(), CopyPlan(plan["record"], replica, plan["counts"])

    def answer(self, host: str, answer: CopyAnswer) -> None:
        """Say how a node stands."""
        self._client.hset(self._answers, host, json.dumps(asdict(answer)))

    def answers(self) -> dict[str, CopyAnswer]:
        """Return how the nodes stand, by host name."""
        found = cast("dict[bytes, bytes]", self._client.hgetall(self._answers))
        return {host.decode(): _answer(json.loads(text)) for host, text in found.items()}


def _answer(found: dict[str, Any]) -> CopyAnswer:
    return CopyAnswer(**{**found, "accepted": tuple(found["accepted"])})
