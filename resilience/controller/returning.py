"""Nodes that come back: those that were lost, and those whose quarantine is over.

::

    lost ──▶ agent started anew ──▶ examined ──▶ back in the cluster, and an event for the policy
              │         ▲             │
              └─ wait ──┘  ◀── lost ──┘       a quarantine that is over ──▶ examined ──▶ an event for the policy

The first attempt is made at once, the next after 10 s, then after twice as long each time, up to five minutes. What
waits for another machine runs in a thread of its own; everything else is done when the controller looks for events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.decision.events import NodeReturned
from laggard.resilience.decision.evidence import Finding, evidence_against
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
from laggard.system.steady_clock import SteadyClock

FIRST_WAIT_S = 10.0  # a reboot takes longer, a lost connection not
LONGEST_WAIT_S = 300.0  # as long as Slurm waits for a node before it calls it down (SlurmdTimeout)
# A node that was back for this long is started at once again when it is lost.
GOOD_RUN_S = 600.0
# Loading a driver and compiling the probe takes most of it; longer than the interval between two readings.
HEALTH_CHECK_DEADLINE_S = 90.0
STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an attempt to bring a node back has failed; without an error, its agent has ended again."""

    # The error, and what two errors that say the same have in common
    error: Exception | None = field(default=None, compare=False)
    what: tuple[object, ...] = ()
    word: NodeWord | None = None  # what the manager of nodes says of it


@dataclass(frozen=True, slots=True)
class NotBack:
    """A node is not back, and is tried again after ``wait_s`` seconds."""

    host: str
    trouble: Trouble
    wait_s: float


class _Attempt:
    """One attempt to start a node's agent anew, in a thread."""

    def __init__(self, allocation: Allocation, record: NodeRecord, changed: threading.Condition) -> None:
        self.result: AgentProcess | Trouble | None = None  # None: it goes on
        self._allocation = allocation
        self._record = record
        self._changed = changed
        threading.Thread(target=self._run, name=f"return-{record.hostname}", daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._allocation.start_agent_again(self._record)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may do
            self.result = Trouble(error, (type(error), *error.args), self._word())
        with self._changed:
            self._changed.notify_all()

    def _word(self) -> NodeWord | None:
        host = self._record.hostname
        with contextlib.suppress(Exception):  # it says so later, or never: why the attempt has failed is known
            return self._allocation.manager.words_on([host]).get(host)
        return None


@dataclass(slots=True)
class _HealthCheck:
    """Is a node that would come back fit? Its state is compared with the job's start, and its devices are probed."""

    node: Node
    began_s: float = field(default_factory=time.time)  # as the readings have it
    due_s: float = field(default_factory=lambda: time.monotonic() + HEALTH_CHECK_DEADLINE_S)

    def faults(self, reserve: Reserve, roster: Roster) -> tuple[Finding, ...] | None:
        """Return what speaks against the node, empty if nothing; None while it is not known."""
        record = self.node.record
        read = reserve.faults_of(record, roster, self.began_s) if record.devices else ()
        if time.monotonic() > self.due_s:
            return (Finding("no reading"),) if read is None else read
        if read is None or not (self.node.agent.has_started and self.node.checks.done):
            return None
        first, last = self.node.checks.first, self.node.checks.last
        found = evidence_against({record.hostname: (first, last)}) if first and last else ()
        return (*(finding for each in found for finding in each.findings), *read)


@dataclass(slots=True)
class _Absent:
    """A node that was lost, on its way back."""

    record: NodeRecord
    wait_s: float = 0.0  # before the next attempt
    tried_s: float = 0.0  # monotonic times: of the last attempt
    due_s: float = 0.0  # of the next attempt
    back_s: float = 0.0  # at which it came back last
    trouble: Trouble | None = None  # why the last attempt failed
    attempt: _Attempt | None = None
    health_check: _HealthCheck | None = None


class Returning:
    """Brings nodes back into the cluster, in the background."""

    def __init__(
        self,
        allocation: Allocation,
        cluster: Cluster,
        reserve: Reserve,
        changed: threading.Condition,
        clock: SteadyClock,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.notices: deque[NotBack] = deque()  # what the user should be told
        # How to start agents, where the nodes come back to, and how their devices are probed
        self._allocation = allocation
        self._cluster = cluster
        self._reserve = reserve
        self._changed = changed  # notified when there may be something new
        self._clock = clock  # says when a quarantine is over
        self._first_wait_s = first_wait_s  # between a node's first attempt and its second
        self._known: dict[str, _Absent] = {}
        self._away: dict[str, _Absent] = {}
        self._quarantined: dict[str, _HealthCheck] = {}

    def bring_back(self, host: str) -> None:
        """Begin to bring back a node that was removed from the cluster."""
        self._quarantined.pop(host, None)
        absent = self._known.get(host)
        if absent is None:
            absent = self._known[host] = _Absent(self._record_of(host))
        else:
            if time.monotonic() - absent.back_s >= GOOD_RUN_S:
                absent.wait_s = 0.0
            self._wait_longer(absent)
        self._away[host] = absent

    def next_event(
        self, roster: Roster, quarantine_s: float, drained: Collection[str] = (), *, urgent: bool
    ) -> NodeReturned | None:
        """Do what is due, and return a node that is back; it is in the cluster then."""
        for host, absent in list(self._away.items()):
            if urgent:
                absent.due_s = min(absent.due_s, absent.tried_s + self._first_wait_s)
            if absent.trouble is not None and self._allocation.has_new_agent(absent.record):
                absent.due_s = 0.0
            if (faults := self._advance(absent, roster)) is not None:
                del self._away[host]
                return NodeReturned(host, faults)
        return self._after_quarantine(roster, quarantine_s, drained)

    def close(self) -> None:
        """End the agents of nodes that are not back yet."""
        nodes = [absent.health_check.node for absent in self._away.values() if absent.health_check]
        for node in nodes:
            node.agent.close()
        for node in nodes:
            node.agent.wait(STOP_DEADLINE_S)
        self._away.clear()

    def _advance(self, absent: _Absent, roster: Roster) -> tuple[Finding, ...] | None:
        """Take a node a step further; return what speaks against it, which may be nothing, once it is back."""
        if absent.health_check is not None:
            return self._examined(absent, absent.health_check, roster)
        if absent.attempt is None:
            if time.monotonic() >= absent.due_s:
                absent.tried_s = time.monotonic()
                absent.attempt = _Attempt(self._allocation, absent.record, self._changed)
        elif (result := absent.attempt.result) is not None:
            absent.attempt = None
            if isinstance(result, Trouble):
                self._put_off(absent, result)
            else:
                absent.record = self._record_of(absent.record.hostname)  # it may have answered for the first time
                absent.health_check = self._examine(self._cluster.connect(absent.record, result))
        return None

    def _examined(self, absent: _Absent, health_check: _HealthCheck, roster: Roster) -> tuple[Finding, ...] | None:
        node = health_check.node
        if node.agent.gone:
            absent.health_check = None
            node.agent.kill()
            self._put_off(absent, Trouble())
            return None
        faults = health_check.faults(self._reserve, roster)
        if faults is None or not self._cluster.may_return(absent.record):
            return None
        absent.health_check = None
        absent.trouble = None
        absent.back_s = time.monotonic()
        self._cluster.take_back(node)
        return faults

    def _after_quarantine(self, roster: Roster, quarantine_s: float, drained: Collection[str]) -> NodeReturned | None:
        now_s = self._clock.now_s()
        for exclusion in roster.excluded:
            node = self._cluster.nodes.get(exclusion.host)
            # What counts as lost although its agent is there has left the reserve at the resource manager's word.
            due = exclusion.host not in drained if exclusion.lost else now_s >= exclusion.until_s(quarantine_s)
            if node is None or not due:
                continue
            if exclusion.host not in self._quarantined:
                self._quarantined[exclusion.host] = self._examine(node)
            elif (faults := self._quarantined[exclusion.host].faults(self._reserve, roster)) is not None:
                del self._quarantined[exclusion.host]
                return NodeReturned(exclusion.host, faults)
        return None

    def _record_of(self, host: str) -> NodeRecord:
        return next(node for node in self._allocation.nodes if node.hostname == host)

    def _examine(self, node: Node) -> _HealthCheck:
        node.checks.check(node.record.devices)  # not probed: the probe of the reserve does that, and more than once
        self._reserve.probe_node(node)
        return _HealthCheck(node)

    def _put_off(self, absent: _Absent, trouble: Trouble) -> None:
        self._wait_longer(absent)
        if trouble != absent.trouble:
            self.notices.append(NotBack(absent.record.hostname, trouble, absent.wait_s))
        absent.trouble = trouble

    def _wait_longer(self, absent: _Absent) -> None:
        absent.wait_s = min(max(self._first_wait_s, 2 * absent.wait_s), LONGEST_WAIT_S)
        absent.due_s = time.monotonic() + absent.wait_s
