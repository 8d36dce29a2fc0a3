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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from laggard.kvstore.client.environment import JOB_BEGAN, TELEMETRY_LEVEL
from laggard.kvstore.control import Request
from laggard.resilience.agent.processes import adopt_orphans, end_descendants
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.controller import wording as notice_wording
from laggard.resilience.controller.hangs import Hangs
from laggard.resilience.controller.launches import END_DEADLINE_S, JobPlan, Launches
from laggard.resilience.controller.outages import Outages
from laggard.resilience.controller.reach import who_cannot_reach
from laggard.resilience.controller.records import Records, RequestReader
from laggard.resilience.controller.replacing import Moved, Replacing
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.controller.resource_manager import ResourceManager
from laggard.resilience.controller.returning import Returning
from laggard.resilience.controller.shard_servers import ShardServers
from laggard.resilience.controller.site_memory import SiteMemory
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.resilience.controller.stop_signals import WARNINGS, StopSignals
from laggard.resilience.controller.stopping import StopRequested
from laggard.resilience.decision import wording
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import (
    Decision,
    End,
    Event,
    JobStatus,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesDrained,
    NodesMissing,
    OutageEnded,
    OutageTooLong,
    ProgramEnded,
    ProgramFailed,
    ProgramHung,
    RanksReplaced,
    Relaunch,
    Report,
)
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.in_place import in_place, moves
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.reasons import NodeWord, Stopped
from laggard.resilience.decision.roster import Roster, bad_and_well
from laggard.resilience.decision.verdicts import believed
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.nodes import wording as node_wording
from laggard.resilience.nodes.cluster import NodeFiles
from laggard.resilience.nodes.waiting import wait_for
from laggard.resilience.record import wording as record_wording
from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import FailureFound, LaunchEndCause, NodeAdded
from laggard.resilience.text import abbreviated, duration
from laggard.system.steady_clock import SteadyClock

_log = logging.getLogger("laggard.resilience.controller")


# Most events notify us. A node that falls silent and a program that hangs do not, so we look for them this often.
CHANGE_WAIT_S = 0.5
LAST_GRACE_S = 5.0
# To end the nodes after the program, and the state server after them.
ENDING_S = 10.0
EXIT_CUT_OFF = 1
# What the resource manager says of a lost node is worth this much of a relaunch, and no more.
WORD_WAIT_S = 3.0
_CAUSES: Mapping[type[Event], LaunchEndCause] = {
    ProgramEnded: "end",
    ProgramFailed: "failure",
    ProgramHung: "hang",
    RanksReplaced: "failure",
    NodesAccused: "exclusion",
    NodeLost: "node lost",
    NodeReturned: "node lost",
    NodeJoined: "node lost",
    NodesDrained: "node lost",
    NodeDrained: "node lost",
    NodesMissing: "node lost",
    OutageEnded: "failure",
    OutageTooLong: "failure",
}


class Controller:
    """Runs one job to its end. Use it once."""

    def __init__(
        self,
        plan: JobPlan,
        allocation: Allocation,
        keeper: StateKeeper,
        account: Account,
        record: Path | None = None,
        missing: Mapping[str, str] | None = None,
        signals: StopSignals | None = None,
    ) -> None:
        self._plan = plan  # what to run, on what, and how
        self._allocation = allocation  # the nodes
        self._keeper = keeper  # the job's state server
        self._account = account  # tells the user
        self._changed = keeper.changed
        self._clock = SteadyClock()
        self._hosts = tuple(node.hostname for node in allocation.nodes)
        self._records = Records(keeper.endpoint, keeper.lock_id)
        self._records.next_launch()  # before anything is written
        self._reserve = Reserve(keeper.endpoint)
        self._requests = RequestReader(keeper.endpoint, self._changed, self._records.last_request_id())
        self._status = JobStatus(Roster((), primary=self._hosts[0]), 0.0)
        self._begin_at_s = 0.0  # monotonic time before which no launch begins
        self._resumable: bool | None = None  # known once the policy has ended the job
        self._tried: set[NodeWord] = set()  # what was said of nodes in use for which ranks were to go on elsewhere
        self._recovers_in = -1  # the last launch whose program restarts its own workers
        self._doubted_in = -1  # the last launch in which a verdict was not believed
        files = {"endpoint.json": keeper.endpoint.to_json(), **plan.telemetry.files}
        environment = {TELEMETRY_LEVEL: str(plan.telemetry.level), JOB_BEGAN: str(self._clock.now_s())}
        folder = "" if plan.checkpoints.directory is None else self._records.state_name()
        self._shard_servers = ShardServers(plan.checkpoints, allocation.nodes, plan.runtime_dir.name, folder)
        setup = NodeFiles(files, environment, self._shard_servers.files)
        self._cluster = plan.cluster(allocation, plan.runtime_dir, setup, self._changed)
        if plan.heartbeat_timeout_s is not None:
            self._cluster.heartbeat_timeout_s = plan.heartbeat_timeout_s
        self._missing = missing or {}  # what is wrong with each node that does not answer, by host name
        self._signals = signals or StopSignals()  # what this process hears of a stop
        self._manager = ResourceManager(allocation)
        self._site = SiteMemory(plan.history, plan.name, self._clock.now_s, allocation.machine_of, self._manager.remark)
        self._returning = Returning(allocation, self._cluster, self._reserve, self._changed, self._clock)
        give_up_after_s = plan.settings.give_up_after_s
        self._outages = Outages(self._cluster, self._hosts[0], keeper.endpoint, give_up_after_s, self._clock.now_s)
        hangs = Hangs(plan.hang_timeout, self._cluster, self._records, account, record)
        self._launches = Launches(
            plan,
            allocation,
            self._cluster,
            keeper,
            self._records,
            self._reserve,
            hangs,
            account,
            self._shard_servers,
            self._clock,
        )

        self._replacing = Replacing(
            plan.settings, self._cluster, self._launches, self._records, account, self._requests
        )

    @property
    def leaves_something(self) -> bool:
        """Whether the state directory has anything for a later job to go on from: a commit, or an exclusion."""
        return self._launches.any_started if self._resumable is None else self._resumable

    def remove_checkpoints(self) -> None:
        """Remove the job's checkpoints from the shared directory: nothing can go on from them without its State."""
        self._shard_servers.remove_directory()

    def run(self) -> int:
        """Run the job; return its exit code."""
        adopt_orphans()
        failed, ended = True, False  # until it is known: an exception fails the job too
        try:
            remembered, ledger = self._records.read_exclusions(), self._records.read_ledger()
            self._ask_manager()
            begun = begin(
                self._plan.settings,
                self._hosts,
                remembered,
                self._clock.now_s(),
                ledger,
                with_devices=frozenset(node.hostname for node in self._allocation.nodes if node.devices),
                head_only=self._plan.head_only,
                missing=self._missing,
                avoided=[
                    *self._manager.words,
                    *self._site.suspects(self._hosts, partial(self._account.tell, "history")),
                ],
            )
            exit_code = self._end(begun) if isinstance(begun, End) else self._run_launches(begun)
            failed, ended = exit_code != 0, True
        except StopRequested as stop:
            failed, exit_code, ended = False, 128 + stop.signum, True
            self._stop(stop)
        finally:
            if ended:
                self._allocation.announce_end(exit_code, self._site.remarks)
            self._shut_down(failed=failed)
        self._account.close(self._roster.excluded_hosts, exit_code, self._roster.set_aside)
        return exit_code

    @property
    def _roster(self) -> Roster:
        return self._status.roster

    @property
    def _recovers(self) -> bool:
        """Whether this launch of the program restarts its own workers, and has not failed."""
        return self._recovers_in == self._launches.number and not self._launches.exit_code

    def _stop(self, stop: StopRequested) -> None:
        """End the program as the user or the resource manager wants, with as much time to save as there is."""
        time_to_save = self._time_to_save(stop.signum)
        why = Stopped(stop.signum, time_to_save.why)
        grace_s = time_to_save.grace_s(self._plan.grace_s, LAST_GRACE_S, ENDING_S)
        self._account.launch_ended((why,), "stop")
        self._account.tell("stop", f"{wording.stopped(why)}: ending everything (again to end it at once)", "bold red")
        self._launches.stop_program(grace_s, signal.SIGINT if stop.signum == signal.SIGINT else signal.SIGTERM)
        if time_to_save.is_over:
            self._avoid_bad_nodes()

    def _time_to_save(self, signum: int) -> TimeToSave:
        known = TimeToSave() if signum == signal.SIGINT else self._allocation.manager.time_to_save()
        # Who asks by SIGUSR1 or SIGUSR2 does it in advance; who asks otherwise may kill us next.
        return known if known.seconds is not None or signum in WARNINGS else replace(known, seconds=LAST_GRACE_S)

    def _avoid_bad_nodes(self) -> None:
        remembered = self._records.read_exclusions()
        bad, well = bad_and_well(self._roster, remembered, self._plan.settings.quarantine_s, self._clock.now_s())
        known_there = self._manager.words.keys()  # what is down or drained is given to nobody
        if change := self._allocation.manager.avoid(bad - known_there, well | known_there, len(self._hosts)):
            self._account.tell("excluded", f"from this job when it is started again: {change}")

    def _run_launches(self, status: JobStatus) -> int:
        self._set_status(status)
        for exclusion in self._roster.excluded:
            if exclusion.host in self._missing:
                continue  # the line on lost nodes is about it
            since = duration(self._clock.now_s() - exclusion.since_s)
            what = "the primary's devices" if exclusion.host == self._roster.primary else exclusion.host
            self._account.tell("excluded", f"{what}, {since} ago by an earlier job")
        for host, complaint in self._missing.items():
            self._account.tell("lost", f"{host}: {complaint}; the job begins without it", "bold yellow")
            self._returning.bring_back(host)
        self._cluster.start(self._roster, self._missing)
        self._launches.fence_first()
        if cut_off := who_cannot_reach(self._keeper.endpoint, self._cluster, self._hosts[0]):
            is_alone = len(cut_off) == len(self._cluster.nodes) - 1
            why = notice_wording.cut_off(cut_off, self._keeper.endpoint, self._allocation.nodes[0])
            self._account.tell("end" if is_alone else "notice", why, "bold red" if is_alone else "bold yellow")
            if is_alone:  # the firewall is to blame, and not these nodes
                return EXIT_CUT_OFF
        while True:
            if self._is_due() and not self._cluster.lost():
                self._launches.begin(self._status.placed, self._status.placement.devices)
                self._outages.begin()
            elif (event := self._next_event()) and (exit_code := self._handle(event)) is not None:
                return exit_code

    def _is_due(self) -> bool:
        """Return whether the next launch is due, as far as time and the policy say."""
        waits = self._status.waits_since_s is not None or self._status.outage is not None
        return self._launches.program is None and not waits and time.monotonic() >= self._begin_at_s

    def _handle(self, event: Event) -> int | None:
        """Do about an event what the policy says; return the exit code if the job has ended."""
        _log.debug("event: %s", event)
        if isinstance(event, NodeLost | NodesAccused | ProgramFailed | ProgramHung):
            self._drain_reserve(event)
        if isinstance(event, NodeLost | NodesAccused):
            self._exclude_slow_reserve()
        lost = event.host if isinstance(event, NodeLost) else None
        cause = _CAUSES[type(event)]
        match self._decide(event):
            case End() as decision:
                return self._end(decision, cause)
            case Report() as report if isinstance(event, NodeDrained | RanksReplaced):
                self._relieve(report, event)
            case Report(status, reason):
                self._set_status(status, wording.reason(reason))
                self._tell_report(event, wording.reason(reason))
                self._launches.remove_node(lost)
            case Relaunch() as relaunch:
                may_move = isinstance(event, NodesAccused | NodeLost) and not relaunch.new_cluster
                if not (may_move and self._move(relaunch, event) == "moved"):
                    self._relaunch(relaunch, event, lost)
        if lost is not None and lost != self._roster.primary and self._plan.settings.resilient:
            self._returning.bring_back(lost)
        return None

    def _move(self, decision: Relaunch | Report, event: Event) -> Moved:
        """Have only the ranks of nodes that leave go on elsewhere, if that is possible."""
        before, after = self._status, in_place(self._status, decision.status)
        if not (found := moves(before, after, self._plan.settings.devices)):
            return "not begun"
        # Who gives the nodes knows what is wrong with a drained one: nothing is noted about it.
        self._set_status(after, "" if isinstance(event, NodeDrained) else wording.reason(decision.reason))
        if isinstance(event, NodeLost):
            self._launches.remove_node(event.host)
        placed, devices = after.placed, after.placement.devices
        moved = self._replacing.move(found, placed, devices, decision.reason, _CAUSES[type(event)])
        # A program that has ended meanwhile is not run again.
        return "moved" if self._launches.exit_code == 0 else moved

    def _relieve(self, report: Report, event: NodeDrained | RanksReplaced) -> None:
        """Leave a node without a relaunch, if that is possible; otherwise it stays in use."""
        before = self._status
        match self._move(report, event):
            case "moved" if isinstance(event, NodeDrained):
                with contextlib.suppress(ValueError):
                    self._manager.notices.remove(event.word)  # which says that it stays in use
            case "not begun":
                stays = {*before.roster.active} <= {*report.status.roster.active}
                self._set_status(report.status if stays else replace(before, ledger=report.status.ledger))
            case "stopped":
                self._relaunch(Relaunch(report.status, report.reason), event, None)

    def _relaunch(self, relaunch: Relaunch, event: Event, lost: str | None) -> None:
        status = relaunch.status
        self._set_status(status, wording.reason(relaunch.reason))
        self._account.launch_ended(relaunch.reason, _CAUSES[type(event)], relaunch.wait_s)
        begins = status.waits_since_s is None and status.outage is None
        what = "outage" if status.outage and isinstance(event, ProgramFailed) else "relaunch" if begins else "waits"
        self._account.tell(what, wording.reason(relaunch.reason), "bold yellow")
        self._begin_at_s = max(self._begin_at_s, time.monotonic() + relaunch.wait_s)
        self._launches.end(lost, self._roster, new_cluster=relaunch.new_cluster)
        if relaunch.goes_back:
            self._launches.go_back(relaunch.goes_back)

    def _tell_report(self, event: Event, text: str) -> None:
        match event:
            case NodeReturned():
                self._account.tell("returned", text, "bold yellow" if event.faults else "bold green")
            case OutageEnded():
                self._account.tell("outage", text, "bold green")
                self._account.take_note(event)
            case NodeJoined():
                self._account.tell("joined", text, "bold green")
            case NodesDrained():
                self._account.tell("reserve", text, "bold yellow")
            case _:
                self._account.tell("stays", f"no relaunch: {text}", "bold yellow")

    def _decide(self, event: Event) -> Decision:
        progressed = self._launches.made_progress()
        decision = decide(
            self._plan.settings,
            self._status,
            event,
            now_s=self._clock.now_s(),
            progressed=progressed,
            below=self._plan.below,
        )
        _log.debug("decision (progressed: %s): %s", progressed, decision)
        return decision

    def _drain_reserve(self, event: Event) -> None:
        """Take nodes that are down or drained out of the reserve before one of them is swapped in."""
        if self._plan.settings.resilient and self._roster.reserve:
            if not isinstance(event, NodeLost):  # then it was asked just now
                self._ask_manager()
            if (drained := self._drained()) and isinstance(decision := self._decide(drained), Report):
                self._account.tell("reserve", wording.reason(decision.reason), "bold yellow")
                self._set_status(decision.status)

    def _drained(self) -> NodesDrained | None:
        words = self._words()
        found = tuple(words[host] for host in self._roster.reserve if host in words)
        return NodesDrained(found) if found else None

    def _drained_in_use(self) -> NodeDrained | None:
        """Return a node in use that is drained, if its ranks can go on elsewhere; each word is tried once."""
        if not (self._roster.reserve and self._replacing.all_can_stay):
            return None
        words = self._words()
        found = [words[host] for host in self._roster.active if host in words and words[host] not in self._tried]
        self._tried.update(found[:1])
        return NodeDrained(found[0]) if found else None

    def _words(self) -> Mapping[str, NodeWord]:
        """Return what is wrong with which node, as those say who give the nodes."""
        return {**self._manager.words, **self._cluster.leaving()}

    def _ask_manager(self) -> None:
        """Ask the resource manager about the nodes, and wait a little for what it says."""
        self._manager.ask()
        self._manager.await_answer(WORD_WAIT_S)

    def _exclude_slow_reserve(self) -> None:
        """Exclude slow nodes of the reserve before one of them is swapped in."""
        if not (self._plan.settings.resilient and self._roster.reserve):
            return
        if verdicts := self._reserve.find_slow(self._roster):
            hosts = frozenset(verdict.host for verdict in verdicts)
            evidence = "; ".join(str(verdict.evidence) for verdict in verdicts)
            self._account.tell("reserve", f"{abbreviated(sorted(hosts))} passed over: {evidence}", "bold yellow")
            if isinstance(decision := self._decide(NodesAccused(hosts)), Report):
                self._set_status(decision.status, evidence)

    def _set_status(self, status: JobStatus, why: str = "") -> None:
        # stored before we act on it, since we may be killed in between
        roster = status.roster
        self._site.follow(self._roster, roster, why)
        if (roster.excluded, roster.past) != (self._roster.excluded, self._roster.past):
            self._records.write_exclusions((*roster.excluded, *roster.past), self._hosts)
        if status.ledger != self._status.ledger:
            self._records.write_ledger(status.ledger, self._hosts)
        if len(roster.reserve) != len(self._roster.reserve) and self._launches.program is not None:
            self._records.write_reserve(self._launches.number, len(roster.reserve))
        self._status = status

    def _end(self, end: End, cause: LaunchEndCause = "end") -> int:
        if end.exit_code == 0:  # a signal that comes while all is put away, and the report written, asks for nothing
            self._signals.anticipate()
        if end.status is not None:
            self._set_status(end.status, wording.reason(end.reason))
        self._account.launch_ended(end.reason, cause)
        self._account.tell("end", wording.reason(end.reason), "bold green" if end.exit_code == 0 else "bold red")
        self._launches.stop_program(self._plan.grace_s)
        if end.exit_code != 0 and self._launches.number >= 0:
            self._resumable = self._launches.see_progress() > 0 or bool(self._roster.excluded)
        return end.exit_code

    def _next_event(self) -> Event | None:
        """Wait a little for an event and return it; None if there is none, or only something to report."""
        wait_for(self._changed, self._has_changed, CHANGE_WAIT_S)
        self._report_messages()
        if (failure := self._failure()) is not None:
            raise failure
        if lost := self._cluster.lost():
            return self._loss_of(lost[0])
        if (exit_code := self._launches.exit_code) is not None:
            return self._end_of_program(exit_code)
        while self._requests.waiting:
            if accused := self._handle_request(self._requests.waiting.popleft()):
                return accused
        self._manager.look(self._roster.active)
        self._replacing.keep_spare(self._roster)
        if (
            changed := self._drained()
            or self._drained_in_use()
            or self._join_next()
            or self._returned()
            or self._look_at_outage()
        ):
            return changed
        match self._launches.check_for_hang():
            case None:
                return None
            case ProgramHung() as hang:
                if self._replacing.end_hung(hang):
                    return None
                return replace(hang, course=self._launches.course())
            case raised:
                return self._failure_of(raised)

    def _look_at_outage(self) -> OutageEnded | OutageTooLong | None:
        outage, since_s = self._status.outage, self._status.stalled_since_s
        return None if outage is None else self._outages.look(outage, outage.since_s if since_s is None else since_s)

    def _join_next(self) -> NodeJoined | None:
        """Take in a node that has joined a cluster which we did not start."""
        node = self._cluster.join_next() if self._plan.settings.resilient else None
        if node is None:
            return None
        self._hosts += (node.hostname,)
        self._returning.bring_back(node.hostname)
        self._account.take_note(NodeAdded(node))
        return NodeJoined(node.hostname, bool(node.devices))

    def _returned(self) -> NodeReturned | NodesMissing | None:
        settings, since_s = self._plan.settings, self._status.waits_since_s
        urgent = since_s is not None
        words = self._words()
        if returned := self._returning.next_event(self._roster, settings.quarantine_s, words, urgent=urgent):
            return returned
        is_over = since_s is not None and self._clock.now_s() >= since_s + settings.wait_for_nodes_s
        return NodesMissing() if is_over else None

    def _has_changed(self) -> bool:
        return bool(
            self._launches.exit_code is not None
            or self._requests.waiting
            or self._keeper.messages
            or self._failure() is not None
            or self._cluster.lost()
        )

    def _failure(self) -> Exception | None:
        """Return what keeps the job from going on, in one of the threads that work for it."""
        return self._keeper.failure or self._requests.failure

    def _report_messages(self) -> None:
        for notice in self._cluster.notices():
            self._account.tell("notice", node_wording.notice(notice), "bold yellow")
        while self._returning.notices:
            self._account.tell("notice", notice_wording.not_back(self._returning.notices.popleft()), "bold yellow")
        while self._manager.notices:
            self._account.tell("notice", notice_wording.stays(self._manager.notices.popleft()), "bold yellow")
        self._launches.warm.look()
        if self._launches.program is not None and self._plan.settings.resilient:
            self._outages.note_connections(self._roster, getattr(self._launches.program, "pid", None))
        while self._keeper.messages:
            self._account.tell("state", self._keeper.messages.popleft(), "bold yellow")

    def _end_of_program(self, exit_code: int) -> Event | None:
        if exit_code == 0:
            return ProgramEnded()
        if lost := self._cluster.lost_after_ping(self._roster.up):
            return self._loss_of(lost[0])
        before, after = self._status, self._replacing.with_spare(self._status)
        if after is not before:
            self._set_status(after)
        moved = moves(before, after, self._plan.settings.devices)
        ends = self._replacing.replace(after.placed, after.placement.devices, moved)
        if isinstance(ends, Failure):
            return RanksReplaced(ends, self._launches.examine_nodes(self._roster))
        if lost := self._cluster.lost():
            return self._loss_of(lost[0])
        return self._failure_of(ends)

    def _failure_of(self, lingering: Sequence[ProcessEnd] = ()) -> ProgramFailed:
        found = self._launches.examine_failure(self._roster, lingering)
        failure, course = found.failure, found.course
        self._account.take_note(FailureFound(failure, found.evidence))
        settings = self._plan.settings
        would_wait = settings.resilient and settings.on_failure == "relaunch" and not failure.is_usage
        passed = course.passed or course.ever_progressed
        unanswered = self._outages.find(failure, found.targets, passed=passed) if would_wait else None
        return ProgramFailed(failure, found.evidence, course, unanswered)

    def _loss_of(self, host: str) -> NodeLost:
        self._manager.ask()
        if self._allocation.manager.time_to_save().is_over:  # the other nodes are told to end before we are
            self._signals.anticipate()
            raise StopRequested(signal.SIGTERM)
        self._manager.await_answer(WORD_WAIT_S)
        why, word = self._cluster.why_lost(host), self._manager.words.get(host)
        return NodeLost(host, why, word, recovers=self._recovers)

    def _handle_request(self, request: Request) -> NodesAccused | None:
        if request.launch != self._launches.number:
            return None  # it is about a launch that is over
        match request.kind:
            case "reboot":
                self._account.tell("request", "the program asks for a relaunch", "bold yellow")
                return NodesAccused(frozenset(request.body))
            case "recovers":
                self._recovers_in = request.launch
                return None
            case "shards":
                self._shard_servers.start(self._cluster)
                return None
            case "member":
                self._replacing.take([request])
                return None
            case "notices":
                for notice in request.body:
                    self._account.tell("notice", str(notice), "bold yellow")
                return None
            case _:
                verdicts, doubt = believed(request, {self._roster.primary, self._roster.active[0]})
                for verdict in verdicts:
                    self._account.verdict(verdict)
                    self._site.remark(verdict.host, record_wording.verdict(verdict))
                if doubt and self._doubted_in != request.launch:
                    self._doubted_in = request.launch
                    self._account.tell("notice", doubt, "bold yellow")
                accused = frozenset(verdict.host for verdict in verdicts if verdict.action == "restart")
                for verdict in verdicts:
                    if verdict.host in accused:
                        self._site.note(verdict.host, str(verdict.evidence))
                return NodesAccused(accused, recovers=self._recovers) if accused else None

    def _shut_down(self, *, failed: bool) -> None:
        with contextlib.ExitStack() as last:  # each of them happens, whatever becomes of those before it
            last.callback(self._end_descendants)
            last.callback(self._keeper.stop)
            last.callback(self._launches.close, keep_logs=failed)
            last.callback(self._returning.close)
            self._manager.close()
            self._requests.stop()
            self._site.close()
            if self._site.trouble:
                self._account.tell("notice", self._site.trouble, "bold yellow")

    def _end_descendants(self) -> None:
        try:
            end_descendants(deadline_s=END_DEADLINE_S)
        except ProcessesStillRunningError as error:
            self._account.tell("notice", f"{error}: they are killed, but held in the kernel", "bold yellow")
