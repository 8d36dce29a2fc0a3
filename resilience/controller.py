"""The controller: starts the cluster and the program, waits for what happens, and does what the policy says.

It decides nothing by itself; see :mod:`resilience.policy`. Its order of work at a relaunch keeps the invariants: the
program is asked to stop and given its grace, then the launch number rises (from here on nothing of the old launch can
write), then what is left of it is ended, and only then does the next launch begin. A node that is lost on the way is an
event like any other: the policy is asked again, and the nodes change once more before the launch begins.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from detectors.verdict import Verdict
from kvstore.control import LaunchRecord, Request
from kvstore.environment import LAUNCH, TELEMETRY_LEVEL
from resilience.account import Account, Gap
from resilience.allocation import Allocation
from resilience.cluster import Cluster, NodeDownError, NodeFiles
from resilience.copies import Copies
from resilience.detection import NO_DETECTION, Detection
from resilience.hang import HangTimeout, HangWatch
from resilience.keeper import StateKeeper
from resilience.observation import Observation
from resilience.policy import (
    Decision,
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
    Standing,
    WorkerDied,
    begin,
    decide,
)
from resilience.ports import free_port
from resilience.printer import Printer
from resilience.processes import adopt_orphans, end_descendants, environment_of
from resilience.program import Program
from resilience.record.words import duration
from resilience.records import Records
from resilience.requests import RequestReader
from resilience.reserve import Reserve
from resilience.roster import Roster

__all__ = ["SAME_BREATH_S", "Controller", "JobPlan", "MakeCluster", "StopRequested", "stop_on_signals"]

NEWS_WAIT_S = 0.5  # a silent node is no news: somebody has to look
# A program that fails this long after a worker was killed has failed for another reason.
WORKER_NEWS_S = 60.0
LAST_GRACE_S = 5.0
# Slurm sends SIGTERM twice in a row when a job's time is up; nobody's second thought comes so soon.
SAME_BREATH_S = 1.0
PRINT_DEADLINE_S = 5.0
END_DEADLINE_S = 5.0
FLUSH_DEADLINE_S = 60.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MakeCluster = Callable[[Allocation, Path, NodeFiles, threading.Condition], Cluster]


class StopRequested(Exception):  # noqa: N818 - it is a request, not an error
    """The user wants everything to end (Ctrl-C, SIGTERM)."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to run, on what, and how.

    Attributes
    ----------
    command
        The program's command line.
    settings
        For the policy.
    grace_s
        How long the program may take to save its state when it is asked to stop.
    observation
        The job's telemetry.
    cluster
        Makes the cluster that the program needs.
    runtime_dir
        Private folder for what lives as long as the job.
    hang_timeout
        How long the program may show no sign of life; ``None``: as long as it likes.
    detection
        What is looked for beside the program.
    per_node
        Run a copy on every node, rather than one program on the primary.
    """

    command: Sequence[str]
    settings: Settings
    grace_s: float
    observation: Observation
    cluster: MakeCluster
    runtime_dir: Path
    hang_timeout: HangTimeout | None = None
    detection: Detection = NO_DETECTION
    per_node: bool = False


class Controller:
    """Runs one job to its end. Use it once.

    Attributes
    ----------
    leaves_something
        Whether a later job on the same State could go on from something: a commit, or an exclusion.
    """

    def __init__(self, plan: JobPlan, allocation: Allocation, keeper: StateKeeper, account: Account) -> None:
        self._plan = plan
        self._allocation = allocation
        self._keeper = keeper
        self._account = account
        self._news = keeper.news
        self._nodes = {node.hostname: node for node in allocation.nodes}
        self._records = Records(keeper.endpoint)
        self._reserve = Reserve(keeper.endpoint)
        self._requests: RequestReader | None = None
        self._standing = Standing(Roster(tuple(self._nodes)), 0.0)
        self.leaves_something = False
        self._launch = -1
        self._signs: object = None
        self._hang: HangWatch | None = None
        self._began_s = 0.0
        self._program: Program | Copies | None = None
        self._printer = Printer()
        self._phases: list[float] = []  # when the running relaunch was decided, when its program had ended, was fenced
        files = {"endpoint.json": keeper.endpoint.to_json(), **plan.observation.files}
        environment = {TELEMETRY_LEVEL: str(plan.observation.level)}
        self._cluster = plan.cluster(allocation, plan.runtime_dir, NodeFiles(files, environment), self._news)

    def run(self) -> int:
        """Run the job; return its exit code.

        Raises
        ------
        ClusterError, KVStoreError
            If old processes cannot be ended, or the state server is lost.
        """
        adopt_orphans()
        try:
            begun = begin(self._plan.settings, tuple(self._nodes), self._records.remembered(), time.time())
            exit_code = self._end(begun) if isinstance(begun, End) else self._serve(begun)
        except StopRequested as stop:
            exit_code = 128 + stop.signum
            self._account.launch_ended(str(stop))
            self._account.tell("stop", f"{stop}: ending everything (again to end it at once)", "bold red")
            self._stop_program(min(self._plan.grace_s, LAST_GRACE_S))
        finally:
            self._tear_down()
        self._account.close(self._roster.excluded_hosts, exit_code)
        return exit_code

    @property
    def _roster(self) -> Roster:
        return self._standing.roster

    def _serve(self, standing: Standing) -> int:
        self._standing = standing
        for exclusion in self._roster.excluded:
            since = duration(time.time() - exclusion.since_s)
            self._account.tell("excluded", f"{exclusion.host}, {since} ago by a job before this one")
        self._requests = RequestReader(self._keeper.endpoint, self._news, self._records.last_request_id())
        self._cluster.start(self._roster.active)
        self._fence()
        self._signs = self._records.signs(self._launch)
        while True:
            if self._program is None and not self._cluster.lost():
                self._begin_launch()
                continue
            if (event := self._next_event()) is None:
                continue
            if isinstance(event, NodeLost | NodesAccused):
                self._pass_over_the_slow()
            match self._decide(event):
                case End() as decision:
                    return self._end(decision)
                case Report(standing, reason):
                    self._stand(standing)
                    self._account.tell("stays", f"no relaunch: {reason}", "bold yellow")
                    self._abandon(event)
                case Relaunch(standing, reason, anew):
                    self._stand(standing)
                    self._account.launch_ended(reason)
                    self._account.tell("relaunch", reason, "bold yellow")
                    self._phases = self._phases or [time.monotonic()]
                    self._end_launch(event, anew=anew)

    def _decide(self, event: Event) -> Decision:
        progressed = self._records.signs(self._launch) != self._signs
        return decide(self._plan.settings, self._standing, event, now_s=time.time(), progressed=progressed)

    def _pass_over_the_slow(self) -> None:
        """Take slow nodes out of the reserve before one of it is swapped in."""
        if not (self._plan.settings.resilient and self._roster.reserve):
            return
        if verdicts := self._reserve.slow(self._roster):
            hosts = frozenset(verdict.host for verdict in verdicts)
            evidence = "; ".join(verdict.evidence for verdict in verdicts)
            self._account.tell("reserve", f"{', '.join(sorted(hosts))} passed over: {evidence}", "bold yellow")
            if isinstance(decision := self._decide(NodesAccused(hosts)), Report):
                self._stand(decision.standing)

    def _stand(self, standing: Standing) -> None:
        if standing.roster.excluded != self._roster.excluded:
            # before we act on it: we may be killed on the way
            self._records.remember(standing.roster.excluded, self._nodes.keys() - {self._roster.primary})
        self._standing = standing

    def _end(self, end: End) -> int:
        if end.standing is not None:
            self._stand(end.standing)
        self._account.launch_ended(end.reason)
        self._account.tell("end", end.reason, "bold green" if end.exit_code == 0 else "bold red")
        self._stop_program(self._plan.grace_s)
        if end.exit_code != 0 and self._launch >= 0:
            commits, _ = self._records.signs(self._launch)
            self.leaves_something = commits > 0 or bool(self._roster.excluded)
        return end.exit_code

    def _next_event(self) -> Event | None:
        with self._news:
            self._news.wait_for(self._is_something_new, NEWS_WAIT_S)
        for notice in self._cluster.notices():
            self._account.tell("notice", notice, "bold yellow")
        while self._keeper.tidings:
            self._account.tell("state", self._keeper.tidings.popleft(), "bold yellow")
        if self._keeper.failure is not None:
            raise self._keeper.failure
        if lost := self._cluster.lost():
            return self._loss_of(lost[0])
        if self._program is not None and self._program.exit_code is not None:
            return self._end_of_program(self._program.exit_code)
        while self._requests and self._requests.waiting:
            if accused := self._hear(self._requests.waiting.popleft()):
                return accused
        return self._look_for_a_hang()

    def _look_for_a_hang(self) -> ProgramHung | None:
        if self._hang is None or self._program is None:
            return None
        silent_s = self._hang.look(self._records.signs(self._launch), time.monotonic())
        return None if silent_s is None else ProgramHung(silent_s)

    def _is_something_new(self) -> bool:
        ended = self._program is not None and self._program.exit_code is not None
        asked = self._requests is not None and bool(self._requests.waiting)
        told = bool(self._keeper.tidings) or self._keeper.failure is not None
        return ended or asked or told or bool(self._cluster.lost())

    def _end_of_program(self, exit_code: int) -> Event:
        if exit_code != 0 and (lost := self._cluster.lost_of(self._roster.active)):
            return self._loss_of(lost[0])
        if exit_code < 0:
            return ProgramDied(-exit_code)
        if exit_code > 0 and self._cluster.workers_killed(max(self._began_s, time.time() - WORKER_NEWS_S)):
            return WorkerDied(exit_code)
        return ProgramEnded(exit_code)

    def _loss_of(self, host: str) -> NodeLost:
        if self._allocation.is_ending():  # the nodes are told to end before we are
            raise StopRequested(signal.SIGTERM)
        return NodeLost(host)

    def _hear(self, request: Request) -> NodesAccused | None:
        if request.launch != self._launch:
            return None  # it speaks of a launch that is over
        if request.kind == "reboot":
            self._account.tell("request", "the program asks for a relaunch", "bold yellow")
            return NodesAccused(frozenset(request.body))
        if request.kind == "notices":
            for notice in request.body:
                self._account.tell("notice", str(notice), "bold yellow")
            return None
        verdicts = [Verdict(**fields) for fields in request.body]
        for verdict in verdicts:
            self._account.verdict(verdict)
        accused = frozenset(verdict.host for verdict in verdicts if verdict.action == "restart")
        return NodesAccused(accused) if accused else None

    def _end_launch(self, event: Event, *, anew: bool) -> None:
        """End the running launch, if any, while the nodes of the next one come up."""
        if anew:  # the program stands on the head that is lost, so it ends first
            self._stop_program(self._plan.grace_s)
            self._abandon(event)
            self._cluster.start_anew(self._roster.active)
        else:
            self._abandon(event)
            self._cluster.begin_change(self._roster.active)
            self._stop_program(self._plan.grace_s)
        if self._program is not None:
            self._program = None
            self._phases.append(time.monotonic())
            self._fence()
            self._phases.append(time.monotonic())

    def _fence(self) -> None:
        """Close the old launch: nothing of it can write, all that it wrote is on disk, nothing of it runs here."""
        self._launch = self._records.next_launch()
        self._keeper.flush_to_disk(FLUSH_DEADLINE_S)
        self._tell_swept(self._end_leftovers())

    def _begin_launch(self) -> None:
        try:
            self._tell_swept(self._cluster.finish_change(self._roster.active, self._launch))
        except NodeDownError as down:
            if not self._account.launches and self._roster.primary in self._cluster.lost():
                raise  # it was never up: to try again would not help
            self._account.tell("lost", str(down), "bold yellow")
            return  # the next event
        record = LaunchRecord(
            self._launch,
            tuple(self._nodes[host] for host in self._roster.active),
            tuple(self._nodes[host] for host in self._roster.reserve),
            self._roster.excluded_hosts,
            None if (gap := self._gap()) is None else gap.total_s,
        )
        self._records.write_launch(record)
        self._signs = self._records.signs(self._launch)
        if self._plan.hang_timeout is not None:
            self._hang = HangWatch(self._plan.hang_timeout, self._signs, time.monotonic())
        self._began_s = time.time()
        self._program = self._start_program()
        self.leaves_something = True  # as far as is known
        self._account.launch_began(self._launch, self._roster.active, self._roster.reserve, self._gap())
        self._phases = []
        self._cluster.warm_up(self._roster.reserve[:1])
        if self._plan.settings.resilient:
            self._reserve.probe(self._cluster, self._roster)
        self._plan.observation.start(self._cluster, self._roster.active)
        self._plan.detection.start(self._cluster, self._roster.active, self._launch)

    def _gap(self) -> Gap | None:
        if len(self._phases) < 3:
            return None  # the first launch
        decided_s, stopped_s, fenced_s = self._phases
        return Gap(stopped_s - decided_s, fenced_s - stopped_s, time.monotonic() - fenced_s)

    def _tell_swept(self, ended: int) -> None:
        if ended:
            self._account.tell("swept", f"{ended} processes of the old launch ended")

    def _start_program(self) -> Program | Copies:
        command, primary = self._plan.command, self._nodes[self._roster.primary]
        if not self._plan.per_node:
            return Program(command, self._launch, self._cluster.environment(primary), self._news)
        nodes = [self._cluster.nodes[host] for host in self._roster.active]
        port = free_port("")  # at every address: who listens there may not ask for one
        return Copies(command, self._launch, nodes, port, self._news, self._printer)

    def _stop_program(self, grace_s: float) -> None:
        self._plan.detection.stop(self._cluster, self._launch)
        if self._program is None or self._program.ended:
            return
        asked_s = time.monotonic()
        self._program.ask_to_stop()
        if self._program.wait(grace_s):
            took_s = time.monotonic() - asked_s
            self._account.tell("stopped", f"the program ended within {took_s:.1f} s of its {grace_s:g} s of grace")
        else:
            self._program.kill()
            self._account.tell("stopped", f"the program did not end within its {grace_s:g} s of grace", "bold red")

    def _end_leftovers(self) -> int:
        """End what the program itself left on this machine."""
        own = {self._keeper.pid, *(node.pid for node in self._cluster.nodes.values())}

        def is_leftover(process: psutil.Process) -> bool:
            launch = environment_of(process).get(LAUNCH, "")
            return process.pid not in own and launch.isdigit() and int(launch) < self._launch

        return end_descendants(is_leftover, deadline_s=END_DEADLINE_S)

    def _abandon(self, event: Event) -> None:
        if isinstance(event, NodeLost):
            self._cluster.abandon(event.host)

    def _tear_down(self) -> None:
        if self._requests is not None:
            self._requests.stop()
        if self._program is not None and not self._program.ended:
            self._program.kill()
        if self._account.launches:
            for dump in self._plan.observation.dump(self._keeper.endpoint):
                self._account.tell("dump", dump)
        if self._program is not None:
            self._plan.detection.wait(self._cluster, self._roster.primary, self._launch, self._news)
        self._cluster.stop()
        self._printer.close(PRINT_DEADLINE_S)
        self._keeper.stop()
        end_descendants(deadline_s=END_DEADLINE_S)


def stop_on_signals() -> None:
    """Raise :class:`StopRequested` in the main thread at the first Ctrl-C or SIGTERM; at the second, end at once."""
    asked_s = 0.0

    def stop_now(signum: int, _: FrameType | None) -> None:
        if time.monotonic() < asked_s + SAME_BREATH_S:
            return
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
