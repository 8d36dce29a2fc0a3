"""The controller: waits for what happens to a job, asks the policy what to do about it, and does it.

It decides nothing itself (:mod:`laggard.resilience.decision.policy`), and it leaves ending a launch and beginning the
next to :mod:`laggard.resilience.controller.launches`. A node that is lost while a launch is being prepared is an event
like any other: the policy is asked again, and the nodes change once more before the launch begins.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import Request
from laggard.kvstore.environment import TELEMETRY_LEVEL
from laggard.resilience.agent.processes import adopt_orphans, end_descendants
from laggard.resilience.allocation import Allocation
from laggard.resilience.controller.growth import Growth
from laggard.resilience.controller.hangs import Hangs
from laggard.resilience.controller.launches import END_DEADLINE_S, JobPlan, Launches
from laggard.resilience.controller.records import Records, RequestReader
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.controller.returning import Returning
from laggard.resilience.controller.state_server_keeper import StateKeeper
from laggard.resilience.decision.events import (
    Decision,
    End,
    Event,
    GrowthPays,
    JobStatus,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesMissing,
    ProgramEnded,
    ProgramFailed,
    ProgramHung,
    Relaunch,
    Report,
)
from laggard.resilience.decision.policy import begin, decide
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.nodes.cluster import NodeFiles
from laggard.resilience.record.account import Account, LaunchEndCause
from laggard.resilience.text import abbreviated, duration

_log = logging.getLogger("laggard.resilience.controller")

__all__ = ["SIGNAL_DEBOUNCE_S", "Controller", "StopRequested", "stop_on_signals"]

# Most events notify us. A node that falls silent and a program that hangs do not, so we look for them this often.
CHANGE_WAIT_S = 0.5
LAST_GRACE_S = 5.0
# What the resource manager says of a lost node is worth this much of a relaunch, and no more.
WORD_WAIT_S = 1.0
# Slurm sends SIGTERM twice in a row when a job runs out of time. A user takes longer to press Ctrl-C a second time.
SIGNAL_DEBOUNCE_S = 1.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CAUSES: Mapping[type[Event], LaunchEndCause] = {
    ProgramEnded: "end",
    ProgramFailed: "failure",
    ProgramHung: "hang",
    NodesAccused: "exclusion",
    NodeLost: "node lost",
    NodeReturned: "node lost",
    NodesMissing: "node lost",
    GrowthPays: "growth",
}


class StopRequested(Exception):  # noqa: N818 - a request, not an error, so it is no LaggardError either
    """The user or the resource manager wants the job to end (Ctrl-C, SIGTERM)."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


class Controller:
    """Runs one job to its end. Use it once.

    Parameters
    ----------
    plan
        What to run, on what, and how.
    allocation
        The nodes.
    keeper
        The job's state server.
    account
        Tells the user.
    record
        Folder of the job's record; ``None``: none is kept.
    """

    def __init__(
        self,
        plan: JobPlan,
        allocation: Allocation,
        keeper: StateKeeper,
        account: Account,
        record: Path | None = None,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._keeper = keeper
        self._account = account
        self._changed = keeper.changed
        self._hosts = tuple(node.hostname for node in allocation.nodes)
        self._records = Records(keeper.endpoint)
        self._reserve = Reserve(keeper.endpoint)
        self._requests: RequestReader | None = None
        self._status = JobStatus(Roster(self._hosts), 0.0)
        self._begin_at_s = 0.0  # monotonic time before which no launch begins
        self._resumable: bool | None = None  # known once the policy has ended the job
        files = {"endpoint.json": keeper.endpoint.to_json(), **plan.telemetry.files}
        environment = {TELEMETRY_LEVEL: str(plan.telemetry.level)}
        self._cluster = plan.cluster(allocation, plan.runtime_dir, NodeFiles(files, environment), self._changed)
        if plan.heartbeat_timeout_s is not None:
            self._cluster.heartbeat_timeout_s = plan.heartbeat_timeout_s
        self._growth = Growth(plan.settings)
        self._asking = ThreadPoolExecutor(1, "resource-manager")
        self._returning = Returning(allocation, self._cluster, self._reserve, self._changed)
        hangs = Hangs(plan.hang_timeout, self._cluster, self._records, account, record)
        self._launches = Launches(
            plan, allocation.nodes, self._cluster, keeper, self._records, self._reserve, hangs, account
        )

    @property
    def leaves_something(self) -> bool:
        """Whether the state directory has anything for a later job to go on from: a commit, or an exclusion."""
        return self._launches.any_started if self._resumable is None else self._resumable

    def run(self) -> int:
        """Run the job; return its exit code.

        Raises
        ------
        ClusterError, KVStoreError
            If processes of an old launch cannot be ended, or the state server is lost.
        """
        adopt_orphans()
        failed = True  # until it is known: an exception fails the job too
        try:
            remembered, strikes = self._records.read_exclusions(), self._records.read_strikes()
            begun = begin(self._plan.settings, self._hosts, remembered, time.time(), strikes)
            exit_code = self._end(begun) if isinstance(begun, End) else self._run_launches(begun)
            failed = exit_code != 0
        except StopRequested as stop:
            failed, exit_code = False, 128 + stop.signum
            self._account.launch_ended(str(stop), "stop")
            self._account.tell("stop", f"{stop}: ending everything (again to end it at once)", "bold red")
            self._launches.stop_program(min(self._plan.grace_s, LAST_GRACE_S))
        finally:
            self._shut_down(failed=failed)
        self._account.close(self._roster.excluded_hosts, exit_code)
        return exit_code

    @property
    def _roster(self) -> Roster:
        return self._status.roster

    def _run_launches(self, status: JobStatus) -> int:
        self._status = status
        for exclusion in self._roster.excluded:
            since = duration(time.time() - exclusion.since_s)
            self._account.tell("excluded", f"{exclusion.host}, {since} ago by an earlier job")
        self._requests = RequestReader(self._keeper.endpoint, self._changed, self._records.last_request_id())
        self._cluster.start(self._roster.active)
        self._launches.fence_first()
        while True:
            if self._is_due() and not self._cluster.lost():
                self._launches.begin(self._roster)
            elif (event := self._next_event()) and (exit_code := self._handle(event)) is not None:
                return exit_code

    def _is_due(self) -> bool:
        """Return whether the next launch is due, as far as time and the policy say."""
        waits = self._status.waits_since_s is not None
        return self._launches.program is None and not waits and time.monotonic() >= self._begin_at_s

    def _handle(self, event: Event) -> int | None:
        """Do about an event what the policy says; return the exit code if the job has ended."""
        _log.debug("event: %s", event)
        if isinstance(event, NodeLost | NodesAccused):
            self._exclude_slow_reserve()
        lost = event.host if isinstance(event, NodeLost) else None
        cause = _CAUSES[type(event)]
        match self._decide(event):
            case End() as decision:
                return self._end(decision, cause)
            case Report(status, reason):
                self._set_status(status)
                if isinstance(event, NodeReturned):
                    self._account.tell("returned", reason, "bold yellow" if event.fault else "bold green")
                else:
                    self._account.tell("stays", f"no relaunch: {reason}", "bold yellow")
                self._launches.remove_node(lost)
            case Relaunch(status, reason, new_cluster, wait_s):
                self._set_status(status)
                self._account.launch_ended(reason, cause, wait_s)
                self._account.tell("relaunch" if status.waits_since_s is None else "waits", reason, "bold yellow")
                self._begin_at_s = max(self._begin_at_s, time.monotonic() + wait_s)
                self._launches.end(lost, self._roster, new_cluster=new_cluster)
        if lost is not None and lost != self._roster.primary and self._plan.settings.resilient:
            self._returning.bring_back(lost)
        return None

    def _decide(self, event: Event) -> Decision:
        progressed = self._launches.made_progress()
        decision = decide(self._plan.settings, self._status, event, now_s=time.time(), progressed=progressed)
        _log.debug("decision (progressed: %s): %s", progressed, decision)
        return decision

    def _exclude_slow_reserve(self) -> None:
        """Exclude slow nodes of the reserve before one of them is swapped in."""
        if not (self._plan.settings.resilient and self._roster.reserve):
            return
        if verdicts := self._reserve.find_slow(self._roster):
            hosts = frozenset(verdict.host for verdict in verdicts)
            evidence = "; ".join(verdict.evidence for verdict in verdicts)
            self._account.tell("reserve", f"{abbreviated(sorted(hosts))} passed over: {evidence}", "bold yellow")
            if isinstance(decision := self._decide(NodesAccused(hosts)), Report):
                self._set_status(decision.status)

    def _set_status(self, status: JobStatus) -> None:
        # stored before we act on it, since we may be killed in between
        roster, others = status.roster, {*self._hosts} - {self._roster.primary}
        if (roster.excluded, roster.past) != (self._roster.excluded, self._roster.past):
            self._records.write_exclusions((*roster.excluded, *roster.past), others)
        if status.strikes != self._status.strikes:
            self._records.write_strikes(status.strikes, others)
        if len(roster.reserve) != len(self._roster.reserve) and self._launches.program is not None:
            self._records.write_reserve(self._launches.number, len(roster.reserve))
        self._status = status

    def _end(self, end: End, cause: LaunchEndCause = "end") -> int:
        if end.status is not None:
            self._set_status(end.status)
        self._account.launch_ended(end.reason, cause)
        self._account.tell("end", end.reason, "bold green" if end.exit_code == 0 else "bold red")
        self._launches.stop_program(self._plan.grace_s)
        if end.exit_code != 0 and self._launches.number >= 0:
            self._resumable = self._launches.see_progress() > 0 or bool(self._roster.excluded)
        return end.exit_code

    def _next_event(self) -> Event | None:
        """Wait a little for an event and return it; None if there is none, or only something to report."""
        with self._changed:
            self._changed.wait_for(self._has_changed, CHANGE_WAIT_S)
        self._report_messages()
        if (failure := self._failure()) is not None:
            raise failure
        if lost := self._cluster.lost():
            return self._loss_of(lost[0])
        if (exit_code := self._launches.exit_code) is not None:
            return self._end_of_program(exit_code)
        while self._requests and self._requests.waiting:
            if accused := self._handle_request(self._requests.waiting.popleft()):
                return accused
        if returned := self._returned():
            return returned
        if self._growth.pays(self._roster, self._launches):
            return GrowthPays()
        return self._launches.check_for_hang()

    def _returned(self) -> NodeReturned | NodesMissing | None:
        settings, since_s = self._plan.settings, self._status.waits_since_s
        urgent = since_s is not None
        if returned := self._returning.next_event(self._roster, settings.quarantine_s, urgent=urgent):
            return returned
        is_over = since_s is not None and time.time() >= since_s + settings.wait_for_nodes_s
        return NodesMissing() if is_over else None

    def _has_changed(self) -> bool:
        return bool(
            self._launches.exit_code is not None
            or (self._requests and self._requests.waiting)
            or self._keeper.messages
            or self._failure() is not None
            or self._cluster.lost()
        )

    def _failure(self) -> Exception | None:
        """Return what keeps the job from going on, in one of the threads that work for it."""
        return self._keeper.failure or (None if self._requests is None else self._requests.failure)

    def _report_messages(self) -> None:
        for notice in self._cluster.notices():
            self._account.tell("notice", notice, "bold yellow")
        while self._returning.notices:
            self._account.tell("notice", self._returning.notices.popleft(), "bold yellow")
        while self._keeper.messages:
            self._account.tell("state", self._keeper.messages.popleft(), "bold yellow")

    def _end_of_program(self, exit_code: int) -> Event:
        if exit_code == 0:
            return ProgramEnded()
        if lost := self._cluster.lost_after_ping(self._roster.active):
            return self._loss_of(lost[0])
        failure, evidence = self._launches.examine_failure(self._roster)
        self._account.note_failure(failure, evidence)
        return ProgramFailed(failure, tuple(evidence.items()))

    def _loss_of(self, host: str) -> NodeLost:
        node = self._cluster.nodes[host].record
        word = self._asking.submit(self._allocation.word_on, node)
        if self._allocation.is_ending():  # the other nodes are told to end before we are
            raise StopRequested(signal.SIGTERM)
        why = [self._cluster.why_lost(host)]
        with contextlib.suppress(TimeoutError):  # it says so later, if an agent cannot be started there
            why.append(word.result(WORD_WAIT_S))
        return NodeLost(host, "; ".join(filter(None, why)))

    def _handle_request(self, request: Request) -> NodesAccused | None:
        if request.launch != self._launches.number:
            return None  # it is about a launch that is over
        match request.kind:
            case "reboot":
                self._account.tell("request", "the program asks for a relaunch", "bold yellow")
                return NodesAccused(frozenset(request.body))
            case "notices":
                for notice in request.body:
                    self._account.tell("notice", str(notice), "bold yellow")
                return None
            case _:
                return self._handle_verdicts([Verdict(**fields) for fields in request.body])

    def _handle_verdicts(self, verdicts: list[Verdict]) -> NodesAccused | None:
        for verdict in verdicts:
            self._account.verdict(verdict)
        accused = frozenset(verdict.host for verdict in verdicts if verdict.action == "restart")
        return NodesAccused(accused) if accused else None

    def _shut_down(self, *, failed: bool) -> None:
        with contextlib.ExitStack() as last:  # each of them happens, whatever becomes of those before it
            last.callback(self._end_descendants)
            last.callback(self._keeper.stop)
            last.callback(self._launches.close, keep_logs=failed)
            last.callback(self._returning.close)
            self._asking.shutdown(wait=False, cancel_futures=True)
            if self._requests is not None:
                self._requests.stop()

    def _end_descendants(self) -> None:
        try:
            end_descendants(deadline_s=END_DEADLINE_S)
        except ProcessesStillRunningError as error:
            self._account.tell("notice", f"{error}: they are killed, but held in the kernel", "bold yellow")


def stop_on_signals() -> None:
    """Raise :class:`StopRequested` in the main thread at the first Ctrl-C or SIGTERM; at the second, end at once."""
    asked_s = 0.0

    def stop_now(signum: int, _: FrameType | None) -> None:
        if time.monotonic() < asked_s + SIGNAL_DEBOUNCE_S:
            return
        with contextlib.suppress(ProcessesStillRunningError):  # they are killed, but held in the kernel
            end_descendants(deadline_s=END_DEADLINE_S)
        raise SystemExit(128 + signum)

    def stop(signum: int, _: FrameType | None) -> None:
        nonlocal asked_s
        asked_s = time.monotonic()
        for each in _STOP_SIGNALS:
            signal.signal(each, stop_now)
        raise StopRequested(signum)

    for each in _STOP_SIGNALS:
        signal.signal(each, stop)
