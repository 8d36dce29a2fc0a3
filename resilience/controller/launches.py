"""Ending one launch of the program and beginning the next, in the order that keeps the invariants.

The program is asked to stop and given its grace period. Then the launch number is raised: from here on the old launch
can write nothing. Then what is left of it is ended, here and on every node. Only then does the next launch begin.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from laggard.kvstore.checkpoints.complete import Newest
from laggard.kvstore.client.environment import LAUNCH
from laggard.kvstore.control import DETECT_INTERVAL_S, LaunchRecord
from laggard.kvstore.membership import Replaced
from laggard.logs import ends_of_logs
from laggard.resilience.agent.hook import hook_variables
from laggard.resilience.agent.processes import end_descendants, environment_of
from laggard.resilience.allocation import Allocation
from laggard.resilience.controller.detection import NO_DETECTION, Detection
from laggard.resilience.controller.hangs import Hangs
from laggard.resilience.controller.records import Records
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.controller.shard_servers import IN_MEMORY, CheckpointOptions, ShardServers
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.resilience.controller.telemetry_processes import JobTelemetry
from laggard.resilience.controller.warm_ranks import WarmRanks
from laggard.resilience.decision.events import ProgramHung, Reason, Settings
from laggard.resilience.decision.evidence import Found, evidence_against, memory_ran_out
from laggard.resilience.decision.failure import Failure, explain
from laggard.resilience.decision.hang import HangTimeout
from laggard.resilience.decision.origin import ProcessEnd, by_one_clock
from laggard.resilience.decision.placement import Below
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import Course, EarlierLaunches, LaunchSpan
from laggard.resilience.errors import NodeDownError, ProcessesStillRunningError
from laggard.resilience.nodes import wording as node_wording
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.resilience.nodes.program import Program
from laggard.resilience.nodes.rank_variables import in_order, run_variables
from laggard.resilience.nodes.ranks import Ranks
from laggard.resilience.reading.targets import Target, targets_in
from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import LaunchEndCause
from laggard.resilience.record.job_logs import save_logs
from laggard.resilience.record.node_history import NodeHistory
from laggard.system.ports import give_back, port_for_later
from laggard.system.printer import Printer, unbuffered
from laggard.system.steady_clock import SteadyClock
from laggard.telemetry.course import Gap

PRINT_DEADLINE_S = 5.0
END_DEADLINE_S = 5.0
LEAVE_S = 5.0
# A program that fails later than this after a worker was killed has failed for another reason.
RECENT_KILL_S = 60.0
# How long copies of checkpoints that are under way hold up a relaunch.
COPIES_DEADLINE_S = 10.0
COPIES_POLL_S = 0.05

Devices = Mapping[str, tuple[str, ...]]
MakeCluster = Callable[[Allocation, Path, NodeFiles, threading.Condition], Cluster]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to run, on what, and how."""

    command: Sequence[str]  # command line of the program
    settings: Settings  # settings of the policy
    grace_s: float  # how long the program may take to save its state when it is asked to stop, in seconds
    telemetry: JobTelemetry  # the job's telemetry
    cluster: MakeCluster  # creates the kind of cluster that the program needs
    runtime_dir: Path  # private folder for files that live as long as the job
    hang_timeout: HangTimeout | None = None  # how long the program may show no sign of life; `None`: forever
    detection: Detection = NO_DETECTION  # what to watch for beside the program
    per_node: bool = False  # whether to run the program on every node, instead of one program on the primary
    per_device: bool = False  # whether each device has a rank of its own
    # How long an agent may be silent before its node is lost; `None`: as long as the cluster says
    heartbeat_timeout_s: float | None = None
    ends_s: float | None = None  # Unix time at which the job ends at the latest, or is expected to; `None`: not known
    head_only: bool = False  # whether the primary cannot run programs, so that it only holds State and the controller
    checkpoints: CheckpointOptions = IN_MEMORY  # where checkpoints may go
    may_be_warm: bool = False  # whether ranks may be forked from warm processes
    below: Below = secrets.randbelow  # draws where suspects go
    history: NodeHistory | None = None  # what the site remembers of its nodes
    name: str = "a job"  # under which it remembers this one


@dataclass(frozen=True, slots=True)
class Examined:
    """Why a launch failed, what speaks against which node, and what may be away."""

    failure: Failure
    evidence: tuple[Found, ...]
    targets: tuple[Target, ...]  # what the process that was first names
    course: Course  # how far the launch had come


class Launches:
    """The launches of one job, one at a time."""

    def __init__(
        self,
        plan: JobPlan,
        allocation: Allocation,
        cluster: Cluster,
        keeper: StateKeeper,
        records: Records,
        reserve: Reserve,
        hangs: Hangs,
        account: Account,
        shard_servers: ShardServers,
        clock: SteadyClock,
    ) -> None:
        self._plan = plan  # what to run
        self._allocation = allocation  # the nodes, the primary first
        self._primary = allocation.nodes[0]
        self._cluster = cluster  # their agents
        self._keeper = keeper  # the job's state server
        # What is stored in it, the probes of the reserve, what watches for hangs, and what holds checkpoints
        self._records = records
        self._reserve = reserve
        self._hangs = hangs
        self._shard_servers = shard_servers
        self._account = account  # tells the user
        self._clock = clock  # says when launches began
        self._printer = Printer({"stdout": unbuffered(sys.stdout), "stderr": unbuffered(sys.stderr)})
        # The processes from which the next launch is forked
        self.warm = WarmRanks(
            plan.command,
            cluster,
            account,
            is_wanted=plan.may_be_warm and plan.per_node,
            per_device=plan.per_device,
            writes_stacks=hangs.watched,
        )
        self._run = records.state_name()  # of the job, in trackers of experiments
        self.number = -1  # the current launch number; -1 before the first one
        self._seen = -1  # the launch whose signs count: while ranks are replaced, the one before
        self.program: Program | Ranks | None = None  # the program of the current launch; `None` between two launches
        self.any_started = False  # whether the program was started at all
        self._began_s = 0.0
        self._asked_s: float | None = None  # monotonic time at which the program was asked to stop
        self._signs_at_start: tuple[int, str | None] = 0, None
        self._earlier = EarlierLaunches()
        # Monotonic times of the relaunch under way: decided, old program ended, old launch fenced.
        self._relaunch_s: list[float] = []

    @property
    def exit_code(self) -> int | None:
        """Exit code of the current program, once it has ended."""
        return None if self.program is None else self.program.exit_code

    @property
    def ran_s(self) -> float:
        """For how long the current launch has run."""
        return self._clock.now_s() - self._began_s if self.program else 0.0

    def made_progress(self) -> bool:
        """Return whether the current launch came further than those before it."""
        return self._earlier.made_progress(self._span())

    def course(self) -> Course:
        """Return how far the current launch has come."""
        span = self._span()
        course = self._earlier.course(span)
        if not span.is_soon:
            return course
        run, has_directory = self._plan.runtime_dir.name, self._plan.checkpoints.directory is not None
        return replace(course, saves=tuple(self._records.older_saves(self.number, run, directory=has_directory)))

    def go_back(self, saves: Sequence[Newest]) -> None:
        """Set checkpoints aside, between two launches."""
        self._records.set_aside(saves, self.number)
        for each in saves:
            aside = f"{each.name} of step {each.checkpoint.step} is set aside"
            self._account.tell(
                "notice", f"{aside}: the next launch goes on from step {each.before.step}", "bold yellow"
            )

    def _span(self) -> LaunchSpan:
        commits, step = self._records.signs(self._seen)
        before, _ = self._signs_at_start
        return LaunchSpan(self.ran_s, commits - before, None if step is None else float(step), resumed=before > 0)

    def see_progress(self) -> int:
        """Record how far the current launch has come, as it ends; return the number of commits to State so far."""
        commits, step = self._records.signs(self._seen)
        if self.program is not None:
            self._earlier.add(self._span())
        self._account.see_progress(self._seen, commits, step)
        return commits

    def examine_failure(self, roster: Roster, lingering: Sequence[ProcessEnd] = ()) -> Examined:
        """Return why the current program failed, and what speaks against which node in use or in reserve."""
        # It takes some seconds: until it is known which process was first, and all nodes are checked. Meanwhile the
        # rest of the program ends.
        if self.program is None:
            raise ValueError("no program is running")
        hosts_to_check = tuple(dict.fromkeys((*roster.up, *roster.reserve)))
        self.warm.fork_ahead(roster.active)
        self._cluster.begin_checks(hosts_to_check, probe=True)
        ends = lingering or by_one_clock(self.program.failed(), self._cluster.clocks())
        self._ask_to_stop(self.program)
        since_s = time.time() - min(self._clock.now_s() - self._began_s, RECENT_KILL_S)
        hosts = {node.address: node.hostname for node in self._allocation.nodes}
        failure = explain([*ends, *self._cluster.killed_workers(since_s)], hosts)
        checks = self._cluster.finish_checks(hosts_to_check)
        if failure.host in checks and memory_ran_out(*checks[failure.host]):
            failure = failure.for_want_of_memory()
        first = (end for end in ends if end.host == failure.host and end.rank in (None, failure.rank))
        lines = next(first, ends[0]).lines
        own = {*hosts, *hosts.values()}
        ports = [self._keeper.endpoint.port, *([self.program.port] if isinstance(self.program, Ranks) else ())]
        return Examined(failure, evidence_against(checks), targets_in(lines, own, ports), self.course())

    def examine_nodes(self, roster: Roster) -> tuple[Found, ...]:
        """Return what speaks against which node, while the program runs."""
        hosts = tuple(dict.fromkeys((*roster.active, *roster.reserve)))
        self._cluster.begin_checks(hosts)
        return evidence_against(self._cluster.finish_checks(hosts))

    def check_for_hang(self) -> ProgramHung | Sequence[ProcessEnd] | None:
        """Return the hang of the current program, if it hangs."""
        return None if self.program is None else self._hangs.check(self.program)

    def fence_first(self) -> None:
        """End whatever an earlier job has left, which can write no more, before the first launch."""
        self._close_old(self._records.launch)
        self._signs_at_start = self._records.signs(self.number)
        if self.number > 0:
            self._tell_lost_checkpoints()

    def _tell_lost_checkpoints(self) -> None:
        """Say which checkpoints an earlier job had only in the memory of its nodes."""
        has_directory = self._plan.checkpoints.directory is not None
        for lost in self._records.lost_checkpoints(self.number, directory=has_directory):
            self._account.tell("notice", str(lost), "bold yellow")

    def begin(self, roster: Roster, devices: Devices) -> None:
        """Begin a launch on the active nodes of a roster, some of them with another order of their devices."""
        # If a node is lost meanwhile, no program is started: the loss is the controller's next event.
        try:
            self._report_leftovers(self._cluster.finish_change(roster, self.number))
        except NodeDownError as down:
            if not self._account.launches and roster.primary in self._cluster.lost():
                raise
            self._account.tell("lost", str(down), "bold yellow")
            return
        gap = self._gap()
        self._signs_at_start = self._records.signs(self.number)
        self._records.write_launch(self._record(roster, devices, gap))
        self._account.see_progress(self.number, *self._signs_at_start)
        self._began_s = self._clock.now_s()
        self._asked_s = None
        self.program = self._start_program(roster, devices)
        if isinstance(self.program, Ranks):
            self.warm.began(roster, self.program, self.number)
        self.any_started = True
        self._account.launch_began(self.number, roster.active, roster.reserve, self._gap(), roster.primary)
        self._relaunch_s = []
        self._start_helpers(roster)

    def end(self, lost: str | None, roster: Roster, *, new_cluster: bool) -> None:
        """End the current launch, if any, while the nodes of the next one start."""
        self._relaunch_s = self._relaunch_s or [time.monotonic()]
        self.warm.fork_ahead(roster.active)
        if new_cluster:  # the program depends on the head that is lost, so it ends first
            self.stop_program(self._plan.grace_s)
            self.remove_node(lost)
            self._cluster.restart(roster)
        else:
            node = self._cluster.nodes.get(lost or "")  # it may be removed already
            if node is not None and node.told_to_end:  # its ranks can save as well
                self.stop_program(self._plan.grace_s)
            self.remove_node(lost)
            self._cluster.begin_change(roster)
            self.stop_program(self._plan.grace_s)
        if self.program is not None:
            if lost is None:
                self._wait_for_copies()
            if isinstance(self.program, Ranks):
                give_back(self.program.port)
            self.see_progress()
            self.program = None
            self._relaunch_s.append(time.monotonic())
            self._close_old(self._records.next_launch())
            self._relaunch_s.append(time.monotonic())

    def begin_replacing(self, ranks: Collection[int], roster: Roster, devices: Devices) -> None:
        """Begin a launch in which new processes take the place of these ranks, and the others go on."""
        before = self.number
        self.number = self._records.next_launch()
        self._records.write_launch(self._record(roster, devices, None))
        self._records.publish(Replaced(self.number, before, tuple(sorted(ranks))))

    def finish_replacing(self, why: Reason, cause: LaunchEndCause, program: Ranks, roster: Roster, gap: Gap) -> None:
        """Take note that all ranks go on in the launch that was begun last."""
        self._plan.detection.stop(self._cluster, self._seen)
        self._hangs.end()
        self.see_progress()
        self._account.launch_ended(why, cause)
        self._seen = self.number
        self._signs_at_start = self._records.signs(self.number)
        self._began_s = self._clock.now_s()
        self._account.launch_began(self.number, roster.active, roster.reserve, gap, roster.primary)
        self.warm.moved(roster)
        program.wait_for_left(LEAVE_S)
        with contextlib.suppress(NodeDownError):  # the loss is the controller's next event
            self._report_leftovers(self._cluster.finish_change(roster, self.number))
            self._start_helpers(roster)

    def remove_node(self, host: str | None) -> None:
        """Remove a lost node from the cluster, and with it the checkpoints in its memory."""
        if host is not None and host in self._cluster.nodes:
            self._cluster.remove(host)
            if self._shard_servers.wanted:
                self._records.forget_shard_server(self._plan.runtime_dir.name, host)

    def stop_program(self, grace_s: float, signum: int = signal.SIGTERM) -> None:
        """Ask the program to stop, and kill it if it has not ended after ``grace_s`` seconds."""
        self._plan.detection.stop(self._cluster, self._seen)
        self._hangs.end()
        if self.program is None or self.program.ended:
            return
        asked_s = self._ask_to_stop(self.program, signum)
        if self.program.wait(max(0.0, asked_s + grace_s - time.monotonic())):
            took_s = time.monotonic() - asked_s
            self._account.tell("stopped", f"the program ended {took_s:.1f} s into its {grace_s:g} s grace period")
        else:
            self._kill(self.program)
            self._account.tell("stopped", f"the program was killed after its {grace_s:g} s grace period", "bold red")

    def _wait_for_copies(self) -> None:
        """Wait until the checkpoints that the program has saved last count: in the next launch they never will."""
        if not self._shard_servers.wanted:
            return
        until_s = time.monotonic() + COPIES_DEADLINE_S
        while missing := self._records.copies_under_way(self._seen):
            if time.monotonic() > until_s:
                what = "1 shard has" if missing == 1 else f"{missing} shards have"
                late = f"{what} not got all copies within {COPIES_DEADLINE_S:g} s: the last checkpoint does not count"
                self._account.tell("notice", late, "bold yellow")
                return
            time.sleep(COPIES_POLL_S)

    def _ask_to_stop(self, program: Program | Ranks, signum: int = signal.SIGTERM) -> float:
        """Ask the program to stop, once: a second signal may interrupt what it is saving; return when it was asked."""
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            program.ask_to_stop(signum)
        return self._asked_s

    def close(self, *, keep_logs: bool) -> None:
        """End the program, and everything on every node; keep the ends of all logs if the job has failed."""
        with contextlib.ExitStack() as last:  # each of them happens, even if the program cannot be ended
            last.callback(self._printer.drain, PRINT_DEADLINE_S)
            last.callback(self._cluster.stop)
            if keep_logs:
                last.callback(self._save_logs)
            if self._account.launches:
                last.callback(self._write_dumps)
            if self.program is not None and self._plan.checkpoints.directory is not None:
                last.callback(self._wait_for_copies)  # a later job may go on from them
            if self.program is not None and not self.program.ended:
                self._kill(self.program)

    def _kill(self, program: Program | Ranks) -> None:
        try:
            program.kill()
        except ProcessesStillRunningError as error:
            self._report_held(error)

    def _write_dumps(self) -> None:
        for dump in self._plan.telemetry.dump(self._keeper.endpoint):
            self._account.tell("dump", dump)
        if self.program is not None:
            self._plan.detection.wait(self._cluster, self._primary.hostname, self._seen, self._keeper.changed)

    def _save_logs(self) -> None:
        state_server = ends_of_logs(self._plan.runtime_dir / "state")
        save_logs(self._plan.runtime_dir, {**self._cluster.collect_logs(), "state-server": state_server})

    def _close_old(self, number: int) -> None:
        """Take up a launch that was raised, so that the old one can write no more, and end what runs of it here."""
        self.number = self._seen = number
        try:
            self._report_leftovers(self._end_leftovers())
        except ProcessesStillRunningError as error:
            self._report_held(error)

    def _end_leftovers(self) -> int:
        """End what the program has left on this machine; return how many processes that were."""
        agents = {node.agent.pid for node in self._cluster.nodes.values()}

        def is_leftover(process: psutil.Process) -> bool:
            launch = environment_of(process).get(LAUNCH, "")
            return launch.isdigit() and int(launch) < self.number and not _is_below(process, agents)

        return end_descendants(is_leftover, deadline_s=END_DEADLINE_S)

    def _report_held(self, error: ProcessesStillRunningError) -> None:
        self._account.tell("notice", node_wording.held(str(error)), "bold yellow")

    def _report_leftovers(self, n_ended: int) -> None:
        if n_ended:
            processes = "1 process" if n_ended == 1 else f"{n_ended} processes"
            self._account.tell("swept", f"{processes} of the old launch ended")

    def _record(self, roster: Roster, devices: Devices, gap: Gap | None) -> LaunchRecord:
        watch = self._plan.detection.watch
        return LaunchRecord(
            self.number,
            tuple(in_order(self._cluster.nodes[host].record, devices) for host in roster.active),
            tuple(self._cluster.nodes[host].record for host in roster.reserve),
            roster.excluded_hosts,
            None if gap is None else gap.total_s,
            DETECT_INTERVAL_S if watch is None else watch.interval_s,
            began_s=time.time(),
            ends_s=self._plan.ends_s,
            commits=self._signs_at_start[0],
            step=self._earlier.best_step,
            head_only=replace(self._primary, devices=()) if roster.is_head_only else None,
            leaves={host: leaf for host, leaf in self._plan.settings.leaves.items() if host in roster.active},
            primary_host=roster.primary,
        )

    def _gap(self) -> Gap | None:
        if len(self._relaunch_s) < 3:
            return None  # the first launch
        decided_s, stopped_s, fenced_s = self._relaunch_s
        return Gap(stopped_s - decided_s, fenced_s - stopped_s, time.monotonic() - fenced_s)

    def _start_program(self, roster: Roster, devices: Devices) -> Program | Ranks:
        command, changed = self._plan.command, self._keeper.changed
        if not self._plan.per_node:
            environment = self._cluster.environment(self._primary) | run_variables(self._run, 0, os.environ)
            if self._hangs.watched:
                environment |= hook_variables(os.environ)
            host, take_errors = self._primary.hostname, self._account.take_errors
            return Program(command, self.number, environment, changed, host, take_errors)
        nodes = [self._cluster.nodes[host] for host in roster.active]
        watched = self._hangs.watched
        return Ranks(
            command,
            self.number,
            nodes,
            port_for_later(),
            changed,
            self._printer,
            run=self._run,
            per_device=self._plan.per_device,
            writes_stacks=watched,
            may_be_warm=self.warm.possible,
            devices=devices,
            take_errors=self._account.take_errors,
        )

    def _start_helpers(self, roster: Roster) -> None:
        hosts = dict.fromkeys((*roster.up, *roster.reserve))
        self._cluster.begin_checks(host for host in hosts if self._cluster.nodes[host].checks.first is None)
        self._cluster.warm_up(roster.reserve[:1])
        if self._plan.settings.resilient:
            self._reserve.probe(self._cluster, roster)
        self._plan.telemetry.start(self._cluster, roster.up)
        self._shard_servers.start_again(self._cluster)
        self._plan.detection.start(self._cluster, roster, self.number)
        # Ranks run where devices are in use; a program that runs once is on the primary.
        self._hangs.begin(roster.active if self._plan.per_node else roster.up, self.number, self._signs_at_start)


def _is_below(process: psutil.Process, agents: Collection[int]) -> bool:
    """Return whether a process is an agent of a node on this machine, or below one: agents end what is left there."""
    try:
        return any(each.pid in agents for each in (process, *process.parents()))
    except psutil.NoSuchProcess:
        return True  # it has ended meanwhile
