"""Keeps a copy of State on another node, and has commits wait for it.

What counts is what most of the job's nodes have accepted (:mod:`laggard.resilience.decision.ballots`):

- Commits wait for a copy from before it counts until after it does not count any more.  So a commit is acknowledged
  without a copy only while most nodes know that there is none, and then nobody takes an old copy for State.
- A primary that is cut off from most nodes can neither reach its copy nor give it up: it acknowledges nothing, and ends
  after half a minute.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.retry import is_passing
from laggard.kvstore.copy_plans import CopyAnswer, CopyPlan, CopyPlans, PlannedReplica
from laggard.kvstore.state_copy import CopySource
from laggard.resilience.decision.backoff import Backoff
from laggard.resilience.decision.ballots import CopyRecord, copy_name, is_majority
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import StateCopyError
from laggard.resilience.nodes.cluster import Cluster

__all__ = ["NAME", "StateCopies", "sidecar_command"]

NAME = "state-copy"
# A copy that confirms nothing for this long is given up; commits wait that long.
PATIENCE_S = 5.0
# At the beginning commits wait this long for the first copy.
FIRST_COPY_S = 20.0
# Most nodes accept a record within this time, of which only time counts in which the state server answers.
DECISION_S = 30.0
FIRST_DECISION_S = 120.0
SYNCHRONIZATION_S = 3600.0
TICK_S = 0.25
POLL_S = 0.05
PROBE_INTERVAL_S = 1.0
STOP_DEADLINE_S = 10.0


def sidecar_command(folder: str, state_dir: Path, host: str) -> list[str]:
    """Return the command of a node's part."""
    module = "laggard.resilience.agent.state_copy"
    return [sys.executable, "-P", "-m", module, folder, str(state_dir), host]


class _Stopping(Exception):  # noqa: N818 - a signal between two functions
    """The job ends."""


class StateCopies:
    """The copies of one job's State, one at a time. Commits wait for the first one from the start.

    Parameters
    ----------
    endpoint
        The job's state server.
    state_dir
        The state directory; each node keeps what it has in a folder there.
    begun
        Who holds State in this term and who votes; it counts for nothing itself.
    changed
        Notified when ``messages`` or ``failure`` has changed.

    Attributes
    ----------
    messages : collections.deque of str
        What has happened to the copy, for the user.
    failure : Exception or None
        Why the controller must not go on.
    """

    def __init__(self, endpoint: Endpoint, state_dir: Path, begun: CopyRecord, changed: threading.Condition) -> None:
        self.messages: deque[str] = deque()
        self.failure: Exception | None = None
        self._state_dir = state_dir
        self._changed = changed
        self._record = begun  # the last one that most nodes have accepted
        self._plan = CopyPlan()
        self._proposed = begun.version
        self._replica: PlannedReplica | None = None  # that is being made, or is the copy
        self._candidates: tuple[str, ...] = ()
        self._backoffs: dict[str, Backoff] = {}
        self._not_before_s: dict[str, float] = {}
        self._began_s = self._made_s = self._confirmed_s = self._probed_s = time.monotonic()
        self._stopped = threading.Event()
        self._source = CopySource(endpoint)
        self._plans = CopyPlans(self._source.client, endpoint)
        self._plans.clear()
        self._awaited = True
        self._source.set_awaited(awaited=True)
        self._thread = threading.Thread(target=self._keep, name="state-copies", daemon=True)
        self._thread.start()

    def look(self, cluster: Cluster, roster: Roster) -> None:
        """Start the nodes' parts that do not run yet; a node of the reserve has the copy first, else the last node."""
        for host, node in list(cluster.nodes.items()):
            node.tasks.start_sidecar(NAME, sidecar_command(node.path_of(""), self._state_dir, host))
        in_order = dict.fromkeys((*roster.reserve, *reversed(roster.active)))
        self._candidates = tuple(host for host in in_order if host != roster.primary and host in cluster.nodes)

    def stop(self) -> None:
        """Leave the copy as it is, and stop."""
        self._stopped.set()
        self._thread.join(STOP_DEADLINE_S)
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self) -> None:
        while not self._stopped.wait(TICK_S):
            try:
                self._tick()
            except _Stopping:
                return
            except Exception as error:  # noqa: BLE001 - the controller ends the job with it
                if is_passing(error):
                    continue
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                return

    def _tick(self) -> None:
        answers = self._answers()
        if self._record.holder:
            self._watch()
        elif self._replica is not None:
            self._finish(self._replica, answers)
        else:
            self._begin()
        if self._record.version == 0 and time.monotonic() > self._began_s + FIRST_COPY_S:
            self._go_on_without("none could be made so far")

    def _answers(self) -> dict[str, CopyAnswer]:
        answers = self._plans.answers()
        if any(answer.promised > self._record.term for answer in answers.values()):
            raise StateCopyError("the job was started again from the copy of State, by another controller")
        return answers

    def _begin(self) -> None:
        """Have a node make a copy."""
        now_s = time.monotonic()
        host = next((host for host in self._candidates if now_s >= self._not_before_s.get(host, 0.0)), None)
        if host is None:
            return
        copy = copy_name(self._record.term, secrets.token_hex(4))
        self._replica = PlannedReplica(host, copy, self._source.admit())
        self._made_s = now_s
        self._publish(replace(self._plan, replica=self._replica))

    def _finish(self, made: PlannedReplica, answers: Mapping[str, CopyAnswer]) -> None:
        """Have commits wait for a copy that is complete, and the nodes know that it counts."""
        answer = answers.get(made.host, CopyAnswer())
        if made.host not in self._candidates:
            self._fail(made, "the node is lost")
        elif answer.copy == made.copy and answer.complete:
            if not self._source.close_admission(made.user):
                self._fail(made, "its connection was lost while it was made")
                return
            self._set_awaited(awaited=True)
            until_s = time.monotonic() + PATIENCE_S
            while not self._source.answers():
                if time.monotonic() > until_s:
                    self._fail(made, "it confirms nothing")
                    return
            self._decide(holder=made.host, copy=made.copy)
            self._confirmed_s = time.monotonic()
            self._say(f"{made.host} has a copy: commits wait until they are on disk there too")
        elif answer.complaint and answer.copy in {"", made.copy}:
            self._fail(made, answer.complaint)
        elif time.monotonic() > self._made_s + SYNCHRONIZATION_S:
            self._fail(made, "it took too long to make")

    def _fail(self, made: PlannedReplica, why: str) -> None:
        """Begin anew, on another node if there is one."""
        self._replica = None
        self._source.cut_off()
        self._hold_back(made.host)
        self._say(f"no copy on {made.host}: {why}")
        if self._proposed != self._record.version:  # some nodes may have accepted that it counts
            self._go_on_without(why)
        elif self._record.version:
            self._set_awaited(awaited=False)

    def _hold_back(self, host: str) -> None:
        waits = self._backoffs.setdefault(host, Backoff(first_s=5.0, most_s=300.0))
        self._not_before_s[host] = time.monotonic() + waits.next_s(0.0)

    def _watch(self) -> None:
        now_s = time.monotonic()
        host = self._record.holder
        if host not in self._candidates:
            self._give_up(f"{host} is lost")
        elif now_s > self._probed_s + PROBE_INTERVAL_S:
            if self._source.answers():
                self._confirmed_s = time.monotonic()
            elif now_s > self._confirmed_s + PATIENCE_S:
                self._give_up(f"that of {host} confirms nothing")
            self._probed_s = time.monotonic()

    def _give_up(self, why: str) -> None:
        """Give up the copy that counts."""
        self._hold_back(self._record.holder)
        self._replica = None
        self._go_on_without(why)
        self._source.cut_off()

    def _go_on_without(self, why: str) -> None:
        """Have most nodes know that there is no copy, then commits not wait for one."""
        self._decide()
        self._set_awaited(awaited=False)
        self._say(f"there is no copy of State on another node ({why}): commits go on without one")

    def _decide(self, holder: str = "", copy: str = "") -> None:
        """Have most nodes accept where the copy is.

        Raises
        ------
        StateCopyError
            If they do not, though the state server answers.
        """
        is_first = self._record.version == 0
        self._proposed += 1
        proposal = replace(self._record, version=self._proposed, holder=holder, copy=copy)
        self._publish(CopyPlan(asdict(proposal), self._replica, self._plan.counts))
        left_s = FIRST_DECISION_S if is_first else DECISION_S
        while not self._has_majority(proposal):
            if self._stopped.wait(POLL_S):
                raise _Stopping
            left_s -= POLL_S
            if left_s < 0:
                raise StateCopyError(
                    "most of the job's nodes do not answer, and the copy of State does not either: "
                    "the job may have been started again there, so this one ends"
                )
        self._record = proposal
        if copy:
            self._publish(CopyPlan(asdict(proposal), self._replica, copy))

    def _has_majority(self, proposal: CopyRecord) -> bool:
        try:
            answers = self._answers()
        except Exception as error:
            if is_passing(error):
                return False
            raise
        return is_majority([h for h, a in answers.items() if a.accepted == proposal.order], proposal.members)

    def _publish(self, plan: CopyPlan) -> None:
        self._plans.write(plan)
        self._plan = plan

    def _set_awaited(self, *, awaited: bool) -> None:
        if awaited != self._awaited:
            self._source.set_awaited(awaited=awaited)
            self._awaited = awaited

    def _say(self, message: str) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
