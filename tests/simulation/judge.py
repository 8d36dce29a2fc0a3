"""What must always hold, by the words of the design: the judge sees everything, and believes nobody's account of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laggard.kvstore.client.environment import LAUNCH, NODE
from laggard.kvstore.errors import ServerStartError
from laggard.resilience.decision.events import (
    EXIT_NO_PROGRESS,
    EXIT_TOO_FEW_NODES,
    Decision,
    End,
    Event,
    JobStatus,
    NodeLost,
    NodeReturned,
    NodesAccused,
    ProgramFailed,
    Relaunch,
    Settings,
)
from laggard.resilience.errors import NodeDownError
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from tests.simulation.processes import Process
from tests.simulation.scheduler import Thread

if TYPE_CHECKING:
    from tests.simulation.faults import Fault
    from tests.simulation.job import Job

__all__ = ["Judge"]

# The clock of the heartbeats ticks five times a second, and an agent sends them twice a second.
NOTICE_SLACK_S = 1.5
MAX_LAUNCHES = 40


class Judge:
    """Watches one job; `fail` ends its simulation.

    Attributes
    ----------
    trace
        What happened, line by line.
    faults
        The faults that have struck, by kind.
    stopped
        Whether the user has asked the job to end.
    agents_killed
        Nodes whose agent was killed, each with the number of the command whose agent it was.
    nodes_forgotten
        Those of them where the controller could do nothing about it: cut off then or at its end, or it was ending.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.trace: list[str] = []
        self.faults: list[str] = []
        self.stopped = False
        self.agents_killed: set[tuple[int, str]] = set()
        self.nodes_forgotten: set[tuple[int, str]] = set()
        self._acknowledged: set[str] = set()
        self._applied: dict[str, int] = {}
        self._newest_launch = -1
        self._n_launches = self._of_command = 0
        # Who must not be used, and since when; what has been decided but not acted upon yet.
        self._convicted: dict[str, float] = {}
        self._lost: set[str] = set()
        self._pending: frozenset[str] = frozenset()
        self._pending_lost: str | None = None
        self._pending_back: str | None = None
        self._frozen_s = -1.0
        self._end: End | None = None
        self.used: set[str] = set()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._job.scheduler.now_s:9.4f} {text}")

    def fail(self, why: str) -> None:
        """Note that something is wrong: the simulation ends."""
        self.note(f"WRONG: {why}")
        self._job.scheduler.fail(why)

    # -- what the controller does

    def told(self, what: str, text: str) -> None:
        """Take note of what the user is told. By then a decision is acted upon."""
        self.note(f"{what:<9} {text}")
        if what in {"relaunch", "waits", "stays", "returned", "end"}:
            now_s = self._job.scheduler.now_s
            self._convicted.update(dict.fromkeys(self._pending, now_s))
            if self._pending_lost is not None:
                self._lost.add(self._pending_lost)
            if self._pending_back is not None:
                self._lost.discard(self._pending_back)
            self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending = frozenset()
        self._pending_lost = self._pending_back = None

    def decided(self, settings: Settings, status: JobStatus, event: Event, decision: Decision) -> None:
        """Take note of a decision of the policy."""
        roster = status.roster
        self.note(f"decided   {type(event).__name__} {getattr(event, 'host', '')}: {type(decision).__name__}")
        self._end = decision if isinstance(decision, End) else None
        primary = roster.primary
        after = None if decision.status is None else decision.status.roster
        stays = after is None or primary in after.active
        if isinstance(event, NodesAccused) and event.hosts == {primary} and isinstance(decision, Relaunch) and stays:
            self.fail("a relaunch for the primary, which stays")
        guilty: set[str] = set()
        if settings.resilient:
            if isinstance(event, NodesAccused):
                guilty = {*event.hosts} & {*roster.active, *roster.reserve}
            elif isinstance(event, ProgramFailed) and isinstance(decision, Relaunch):
                guilty = {found.host for found in event.evidence} & {*roster.active}
        if primary in guilty and stays and after is not None and len(after.active) > self._needed():
            self.fail("the primary's devices are used though it is accused and there are others")
        self._pending |= guilty - ({primary} if stays else set())
        if isinstance(event, NodeLost) and settings.resilient and event.host != primary:
            self._pending_lost = event.host
        if isinstance(event, NodeReturned) and not event.faults:
            self._pending_back = event.host

    def _needed(self) -> int:
        settings = self._job.plan.settings
        return 1 if settings.exhaust_resources else settings.nodes

    def launch_begins(self, launch: int, nodes: tuple[str, ...], primary: str) -> None:
        """Check a launch whose program has been started just now."""
        job = self._job
        now_s = job.scheduler.now_s
        self.note(f"launch    {launch} on {', '.join(nodes)}")
        self._n_launches += 1
        self._of_command += 1
        self.used |= {*nodes}
        if self._n_launches > MAX_LAUNCHES:
            self.fail("it does not end: launch follows launch")
        if primary != job.plan.hosts[0]:
            self.fail("the primary was dropped")
        if not nodes or len(nodes) > job.plan.settings.nodes:
            self.fail(f"a launch on {len(nodes)} nodes")
        if primary in nodes and len(nodes) <= self._needed():
            self._convicted.pop(primary, None)  # its devices are needed
        if launch <= self._newest_launch:
            self.fail(f"launch {launch} begins after launch {self._newest_launch}")
        if (fence := job.disk.launch()) != launch:
            self.fail(f"launch {launch} begins while the fence is at {fence}")
        for host in nodes:
            if now_s < self._convicted.get(host, -1e9) + job.plan.settings.quarantine_s:
                self.fail(f"{host} is used before its quarantine is over")
            if host in self._lost:
                self.fail(f"{host} is used though it is lost")
        for process in job.of_the_program():
            # What an earlier command could not end is not the child of any agent of ours; it is fenced. What was killed
            # and is held in the kernel never leaves it again.
            own = process.command == job.commands and not process.kill_pending
            if own and int(process.environment[LAUNCH]) < launch and process.environment.get(NODE) in nodes:
                self.fail(f"launch {launch} begins beside {process} of launch {process.environment[LAUNCH]}")
        self._newest_launch = max(launch, self._newest_launch)

    def program_starts(self, process: Process) -> None:
        """Check a rank that has been started just now."""
        launch, node = process.environment[LAUNCH], process.environment[NODE]
        for other in self._job.of_the_program():
            if other is not process and other.environment[LAUNCH] == launch and other.environment.get(NODE) == node:
                self.fail(f"two starts of launch {launch} run on {node}")

    def command_ended(self, exit_code: int, error: BaseException | None, *, by_fault: bool) -> None:
        """Check how the command ended."""
        links = self._job.links
        self.nodes_forgotten |= {each for each in self.agents_killed if each[1] in links and links[each[1]].is_cut}
        self.note(f"ended     with {exit_code} {'' if error is None else f'{type(error).__name__}: {error}'}")
        if by_fault or self.stopped:
            return
        if self._end is not None and error is None and exit_code != self._end.exit_code:
            self.fail(f"the command ended with {exit_code}, not with {self._end.exit_code} as decided")

    def command_begins(self) -> None:
        """Take note that the command runs, perhaps again."""
        self._of_command = 0
        self._end = None
        self._lost.clear()  # what was only lost comes back with the next command
        self._forget_pending()

    def controller_frozen(self) -> None:
        """Take note that the controller was stopped or continued: its clocks count anew."""
        self._frozen_s = self._job.scheduler.now_s

    # -- what the world does

    def fault(self, fault: Fault, victim: str) -> None:
        """Take note of a fault."""
        self.note(f"FAULT     {fault.name} {victim} ({fault.length_s or 'for ever'})")
        self.faults.append(fault.name)

    def agent_killed(self, command: int, host: str, *, is_cut: bool) -> None:
        """Take note that a node has no agent any more: what is left there is for the controller to end."""
        self.agents_killed.add((command, host))
        if is_cut or self._end is not None:
            self.nodes_forgotten.add((command, host))

    def node_hit(self, host: str, length_s: float | None) -> None:
        """Check later that a node that is lost is noticed in time."""
        job = self._job
        command, controller, wait_s = job.command, job.controller, HeartbeatTiming().timeout_s + NOTICE_SLACK_S
        node = None if controller is None else controller._cluster.nodes.get(host)
        if node is None or not node.agent.has_started or (length_s is not None and length_s < wait_s):
            return
        if host in job.links and not job.links[host].is_prompt:
            return  # what it has sent before may still arrive
        hit_s = job.scheduler.now_s

        def check() -> None:
            ends = controller._cluster._awake_clock._stopped.is_set()
            is_over = job.command is not command or command is None or command.ended or ends
            if is_over or self._frozen_s > hit_s or self._end is not None or self.stopped:
                return
            if controller._cluster.nodes.get(host) is node and host not in controller._cluster.lost():
                self.fail(f"{host} is lost since {hit_s:.1f} s, and nobody notices")

        def in_command(call: Callable[[], None]) -> None:
            if command is not None and not command.ended:
                job.scheduler.start(Thread(command, "judge", call))

        if not job.command_is_halted:
            job.scheduler.at(wait_s, lambda: in_command(check))

    def acknowledged(self, key: str) -> None:
        """Take note of a commit that was answered."""
        self._acknowledged.add(key)

    def committed(self, launch: int, key: str) -> None:
        """Check a commit that the server has applied just now."""
        self._applied[key] = self._applied.get(key, 0) + 1
        if self._applied[key] > 1:
            self.fail(f"the commit {key} was applied twice")
        if launch < self._newest_launch:
            self.fail(f"launch {launch} wrote {key} after launch {self._newest_launch} had begun")

    # -- at the end

    def check_commits(self) -> None:
        """Check that every commit that was answered is there."""
        if lost := self._acknowledged - self._job.disk.counters().keys():
            self.fail(f"acknowledged commits are lost: {sorted(lost)}")

    def check_end(self, exit_code: int | None, error: BaseException | None) -> None:
        """Check how the job ended at last."""
        if exit_code is None:
            self.fail("the job does not end")
        expected = {0, EXIT_TOO_FEW_NODES, EXIT_NO_PROGRESS}
        if exit_code not in expected and not self.stopped and self._end is None and error is None:
            self.fail(f"the job ended with {exit_code}")
        # Only what cannot be had from the start ends a job with an error; all else is for the policy.
        if error is not None and not (self._of_command == 0 and isinstance(error, NodeDownError | ServerStartError)):
            self.fail(f"the job ended with {type(error).__name__}: {error}")

    def check_left(self, left: list[Process]) -> None:
        """Check that nothing is left running."""
        if left:
            self.fail(f"left running: {', '.join(map(str, left))}")


_ = Any
