"""The controller: starts the cluster and the program, waits for what happens, and does what the policy says.

It decides nothing by itself; see :mod:`resilience.policy`. Its order of work at a relaunch keeps the invariants: the
program is asked to stop and given its grace, then the launch number rises (from here on nothing of the old launch can
write), then what is left of it is ended, and only then does the next launch begin.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
import redis

from detectors.verdict import Verdict
from kvstore.control import Control, LaunchRecord, Request
from kvstore.environment import LAUNCH, TELEMETRY_LEVEL
from kvstore.fence import begin_launch, current_launch
from kvstore.server import StateServer
from kvstore.state import State
from resilience.account import Account, Gap
from resilience.allocation import Allocation
from resilience.cluster import NodeFiles, RayCluster
from resilience.policy import (
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    Relaunch,
    Report,
    Roster,
    Settings,
    decide,
)
from resilience.processes import adopt_orphans, end_descendants, environment_of
from resilience.program import Program

__all__ = ["Controller", "JobPlan", "StopRequested", "stop_on_signals"]

REQUEST_WAIT_S = 1.0
# A program whose workers vanish may end before we hear why: how long we wait for the news of a lost node.
LOSS_NEWS_S = 1.0
LAST_GRACE_S = 5.0
END_DEADLINE_S = 5.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    telemetry_level
        0 to 4.
    ray_port
        Port of Ray's head on the primary.
    runtime_dir
        Private folder for what lives as long as the job.
    """

    command: Sequence[str]
    settings: Settings
    grace_s: float
    telemetry_level: int
    ray_port: int
    runtime_dir: Path


class Controller:
    """Runs one job to its end. Use it once."""

    def __init__(self, plan: JobPlan, allocation: Allocation, server: StateServer, account: Account) -> None:
        self._plan = plan
        self._allocation = allocation
        self._server = server
        self._account = account
        self._news = threading.Condition()
        self._requests: deque[Request] = deque()
        self._failure: redis.RedisError | None = None
        self._ended = threading.Event()
        self._records = {node.hostname: node for node in allocation.nodes}
        hosts = tuple(self._records)
        self._roster = Roster(hosts[: plan.settings.nodes], hosts[plan.settings.nodes :])
        self._client = server.endpoint.connect()
        self._launch = -1
        self._launches_without_progress = 0
        self._commits = 0
        self._program: Program | None = None
        files = {"endpoint.json": server.endpoint.to_json()}
        environment = {TELEMETRY_LEVEL: str(plan.telemetry_level)}
        self._cluster = RayCluster(
            allocation, plan.runtime_dir, NodeFiles(files, environment), self._news, plan.ray_port
        )

    def run(self) -> int:
        """Run the job; return its exit code.

        Raises
        ------
        ClusterError, redis.RedisError
            If the cluster does not come up, or the state server is lost.
        """
        adopt_orphans()
        try:
            self._cluster.start(self._roster.active)
            self._account.tell("cluster", f"up: Ray on {', '.join(self._roster.active)}")
            self._begin_launch()
            reader = threading.Thread(target=self._read_requests, name="requests", daemon=True)
            reader.start()
            exit_code = self._serve()
        except StopRequested as stop:
            exit_code = 128 + stop.signum
            self._account.launch_ended(str(stop))
            self._account.tell("stop", f"{stop}: ending everything (again to end it at once)", "bold red")
            self._stop_program(min(self._plan.grace_s, LAST_GRACE_S))
        finally:
            self._tear_down()
        self._account.close(self._roster.excluded, exit_code)
        return exit_code

    def _serve(self) -> int:
        while True:
            event = self._next_event()
            decision = decide(self._plan.settings, self._roster, event)
            lost = [event.host] if isinstance(event, NodeLost) else []
            match decision:
                case End(exit_code, reason):
                    self._account.launch_ended(reason)
                    self._account.tell("end", reason, "bold green" if exit_code == 0 else "bold red")
                    if not isinstance(event, ProgramEnded | ProgramDied):
                        self._stop_program(self._plan.grace_s)
                    return exit_code
                case Report(roster, reason):
                    self._roster = roster
                    self._account.tell("report", f"no relaunch: {reason}", "bold yellow")
                    self._abandon(lost)
                case Relaunch(roster, reason):
                    self._relaunch(roster, reason, lost)

    def _next_event(self) -> Event:
        while True:
            with self._news:
                self._news.wait_for(self._is_something_new, REQUEST_WAIT_S)
            if self._failure is not None:
                raise self._failure
            if lost := self._cluster.lost():
                return NodeLost(lost[0])
            if self._program is not None and self._program.exit_code is not None:
                return self._end_of_program(self._program.exit_code)
            while self._requests:
                if accused := self._hear(self._requests.popleft()):
                    return accused

    def _is_something_new(self) -> bool:
        ended = self._program is not None and self._program.exit_code is not None
        return ended or bool(self._requests) or self._failure is not None or bool(self._cluster.lost())

    def _end_of_program(self, exit_code: int) -> Event:
        if exit_code != 0:
            with self._news:
                self._news.wait_for(self._cluster.lost, LOSS_NEWS_S)
            if lost := self._cluster.lost():
                return NodeLost(lost[0])
        if exit_code >= 0:
            return ProgramEnded(exit_code)
        commits = self._state().commits()
        self._launches_without_progress = self._launches_without_progress + 1 if commits == self._commits else 0
        return ProgramDied(-exit_code, self._launches_without_progress)

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
            cause = "" if verdict.cause == "unknown" else f"; likely cause: {verdict.cause}"
            self._account.tell("verdict", f"{verdict.evidence} ({verdict.severity}){cause}", "bold yellow")
        accused = frozenset(verdict.host for verdict in verdicts if verdict.action == "restart")
        return NodesAccused(accused) if accused else None

    def _relaunch(self, roster: Roster, reason: str, lost: Sequence[str]) -> None:
        decided_s = time.monotonic()
        self._account.launch_ended(reason)
        self._account.tell("relaunch", reason, "bold yellow")
        self._roster = roster
        self._abandon(lost)
        self._cluster.begin_change(roster.active)  # a reserve node comes up while the program saves its state
        self._stop_program(self._plan.grace_s)
        self._begin_launch(stop_s=time.monotonic() - decided_s)

    def _begin_launch(self, stop_s: float | None = None) -> None:
        began_s = time.monotonic()
        previous = current_launch(self._client, self._server.endpoint)
        self._launch = 0 if previous is None else previous + 1
        begin_launch(self._client, self._server.endpoint, self._launch)  # the fence: the old launch writes no more
        self._server.flush_to_disk(END_DEADLINE_S)
        ended = self._end_leftovers()
        fenced_s = time.monotonic()
        ended += self._cluster.finish_change(self._roster.active, self._launch)
        if ended:
            self._account.tell("swept", f"{ended} processes of the old launch ended")
        record = LaunchRecord(
            self._launch,
            tuple(self._records[host] for host in self._roster.active),
            tuple(self._records[host] for host in self._roster.reserve),
            self._roster.excluded,
        )
        Control(self._client, self._server.endpoint, self._launch).write_launch(record)
        self._commits = self._state().commits()
        self._program = Program(self._plan.command, self._launch, self._program_environment(), self._news)
        gap = None if stop_s is None else Gap(stop_s, fenced_s - began_s, time.monotonic() - fenced_s)
        self._account.launch_began(self._launch, self._roster.active, self._roster.reserve, gap)
        self._cluster.warm_up(self._roster.reserve[:1])

    def _program_environment(self) -> Mapping[str, str]:
        return self._cluster.environment(self._records[self._roster.primary])

    def _state(self) -> State:
        return State(self._client, self._server.endpoint, self._launch)

    def _stop_program(self, grace_s: float) -> None:
        if self._program is None or self._program.exit_code is not None:
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
        own = {self._server.pid, *(node.pid for node in self._cluster.nodes.values())}

        def is_leftover(process: psutil.Process) -> bool:
            launch = environment_of(process).get(LAUNCH, "")
            return process.pid not in own and launch.isdigit() and int(launch) < self._launch

        return end_descendants(is_leftover, deadline_s=END_DEADLINE_S)

    def _abandon(self, lost: Sequence[str]) -> None:
        for host in lost:
            self._cluster.abandon(host)

    def _read_requests(self) -> None:
        client = self._server.endpoint.connect()
        control = Control(client, self._server.endpoint, self._launch)
        last_id = control.last_request_id()
        try:
            while not self._ended.is_set():
                for request_id, request in control.requests(last_id, REQUEST_WAIT_S):
                    last_id = request_id
                    with self._news:
                        self._requests.append(request)
                        self._news.notify_all()
        except redis.RedisError as failure:
            with self._news:
                self._failure = failure
                self._news.notify_all()

    def _tear_down(self) -> None:
        self._ended.set()
        if self._program is not None and self._program.exit_code is None:
            self._program.kill()
        self._cluster.stop()
        end_descendants(lambda process: process.pid != self._server.pid, deadline_s=END_DEADLINE_S)


def stop_on_signals() -> None:
    """Raise :class:`StopRequested` in the main thread at the first Ctrl-C or SIGTERM; at the second, end at once."""

    def stop_now(signum: int, _: FrameType | None) -> None:
        end_descendants(deadline_s=END_DEADLINE_S)
        raise SystemExit(128 + signum)

    def stop(signum: int, _: FrameType | None) -> None:
        for each in _STOP_SIGNALS:
            signal.signal(each, stop_now)
        raise StopRequested(signum)

    for each in _STOP_SIGNALS:
        signal.signal(each, stop)
