"""One job on simulated machines: the real controller and the real agents, from the command to the last process."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rich.console import Console

from laggard.errors import LaggardError
from laggard.kvstore.client import connection
from laggard.kvstore.client.environment import NODE
from laggard.resilience.agent import folder
from laggard.resilience.agent import processes as agent_processes
from laggard.resilience.agent.agent import Agent
from laggard.resilience.agent.node_check import SHARED_MEMORY
from laggard.resilience.agent.processes import AGENT_MARK
from laggard.resilience.controller import controller as controller_module
from laggard.resilience.controller import launches as launches_module
from laggard.resilience.controller import resource_manager, state_server_supervisor
from laggard.resilience.controller.launches import JobPlan
from laggard.resilience.controller.shard_servers import ShardServers
from laggard.resilience.controller.stop_signals import StopSignals
from laggard.resilience.controller.stopping import StopRequested
from laggard.resilience.controller.telemetry_processes import JobTelemetry
from laggard.resilience.decision import hang
from laggard.resilience.decision.events import Settings
from laggard.resilience.decision.policy import decide
from laggard.resilience.nodes import program as program_module
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.record.account import Account
from laggard.resilience.wire.heartbeat_timing import LEASE_S
from laggard.telemetry.settings import TelemetrySettings
from tests.simulation.allocation import AgentHandle, Allocation
from tests.simulation.judge import Judge
from tests.simulation.modules import machine, replaced_modules, set_machine
from tests.simulation.pipes import Link, Pipe
from tests.simulation.processes import Machine, Process, here
from tests.simulation.programs import Habits, UserProgram, answer, watch_ranks
from tests.simulation.scheduler import Scheduler
from tests.simulation.state_server import Client, Disk, SimulatedServer
from tests.simulation.waits import Executor

__all__ = ["MAX_COMMANDS", "Job", "Plan", "simulated_world"]

MAX_COMMANDS = 7
MAX_NODES = 4
# Ten minutes of silence are thousands of heartbeats, of which each is as dull as the one before.
MIN_SILENCE_S = 8.0


@dataclass(frozen=True)
class Plan:
    """A job to simulate.

    Attributes
    ----------
    hosts
        Its nodes, the primary first.
    settings
        Of the policy.
    habits
        Of the user's program.
    grace_s, hang_timeout_s
        As the options of the command.
    per_node
        Whether a rank runs on every node; otherwise one program on the primary.
    remote
        Whether the nodes are separate machines.
    """

    hosts: tuple[str, ...]
    settings: Settings
    habits: Habits
    grace_s: float = 1.0
    hang_timeout_s: float | None = None
    per_node: bool = True
    remote: bool = True


class _Listener(Account):
    """Takes note of what the user is told."""

    def __init__(self, job: Job) -> None:
        console: Any = None
        super().__init__(console or _QUIET, lambda: job.scheduler.now_s)
        self._job = job

    def tell(self, what: str, text: str, style: str = "") -> None:
        del style
        self._job.judge.told(what, text)

    def launch_began(self, launch: int, nodes: Sequence[str], reserve: Sequence[str], gap: Any, primary: str) -> None:
        self._job.judge.launch_begins(launch, tuple(nodes), primary)
        super().launch_began(launch, nodes, reserve, gap, primary)

    def close(self, excluded: Sequence[str], exit_code: int, set_aside: str = "") -> None:
        pass


_QUIET = Console(quiet=True)
_DEV_NULL = os.open(os.devnull, os.O_WRONLY)
_NOWHERE = SimpleNamespace(fileno=lambda: _DEV_NULL, closed=False)


class _StderrTee:
    """The program's standard error, kept and not copied."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        del take
        self._pipe = Pipe(here().scheduler)
        machine().files[self._pipe.writer.fd] = self._pipe.writer
        self.child_fd = self._pipe.writer.fd
        self.is_terminal = False

    def close_child_fd(self) -> None:
        self._pipe.writer.close()

    def drain(self, deadline_s: float) -> None:
        pass

    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._pipe.unread.decode().splitlines())


@dataclass
class Job:
    """A job that is simulated.

    Parameters
    ----------
    plan
        What to simulate.
    seed
        Of everything that is left to chance.
    directory
        A real folder for the few files that are written.
    """

    plan: Plan
    seed: int
    directory: Path
    controller: Any = None
    command: Process | None = None
    exit_code: int | None = None
    error: BaseException | None = None
    commands: int = 0
    run_again_after_s: float | None = None
    links: dict[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.seed)
        self.machine = Machine(self.scheduler, self.plan.hosts, self._start_program)
        self.disk = self.machine.disk = Disk()
        for host in self.plan.hosts[1:]:
            self.links[host] = Link(self.scheduler)
        self.judge = Judge(self)
        self.disk.on_commit = self.judge.committed
        self.program = UserProgram(self.disk, self.plan.habits, self.plan.hosts, self.judge.acknowledged)
        self.machine.judge, self.machine.links = self.judge, self.links
        set_machine(self.machine)

    @property
    def primary(self) -> Any:
        """The controller's machine."""
        return self.machine.hosts[self.plan.hosts[0]]

    def agent_of(self, host: str) -> Process | None:
        """Return the agent of a node that runs now."""
        where = self.machine.hosts[host] if self.plan.remote else self.primary
        agents = [process for process in where.living if process.tag == ("agent", host)]
        return agents[-1] if agents else None  # those before it were left by earlier commands

    def ranks(self) -> list[Process]:
        """Return the ranks of the program that run now."""
        return [process for process in self.living() if process.tag == "program"]

    def of_the_program(self) -> list[Process]:
        """Return the ranks that run now, and what ranks have left."""
        return [process for process in self.living() if process.tag in ("program", "left")]

    def living(self) -> list[Process]:
        """Return all processes of the job that have not ended."""
        hosts = self.machine.hosts.values()
        return [process for host in hosts for process in host.living if process.name_ != "driver"]

    def left_behind(self) -> list[Process]:
        """Return the processes that nothing hinders from having ended."""
        return [process for process in self.in_care() if not self._is_hindered(process)]

    def in_care(self) -> list[Process]:
        """Return the processes that have not ended, but for those of which nobody that lives can know.

        If a node's agent is killed, and then the controller before it has cleared the node, nobody is left who could
        end what the program has left there; nor if the node cannot be reached. It is fenced.
        """
        return [p for p in self.living() if not self._is_forgotten(p)]

    def _is_forgotten(self, process: Process) -> bool:
        where = (process.command, process.environment.get(NODE))
        is_earlier = 0 < process.command < self.commands
        return (is_earlier and where in self.judge.agents_killed) or where in self.judge.nodes_forgotten

    def _is_hindered(self, process: Process) -> bool:
        """Return whether a process cannot be reached, cannot be ended, or is in the care of one of that kind."""
        if process.host.name in self.links and self.links[process.host.name].is_cut:
            return True
        if isinstance(process.tag, tuple) and process.tag[0] == "relay":
            return self.links[process.tag[1]].is_cut or any(
                p.tag == ("agent", process.tag[1]) and p.halted for p in self.living()
            )
        node = process.environment.get(NODE)
        if any(p.tag == ("agent", node) and p.halted for p in self.living()):
            return True
        each: Process | None = process
        while each is not None:
            if each.halted:
                return True
            each = each.parent
        return any(child.stuck for child in process.offspring)

    @property
    def command_is_halted(self) -> bool:
        """Whether the controller is stopped."""
        return self.command is None or self.command.halted

    # -- the command

    def start_command(self) -> None:
        """Run the command, as the user does."""
        self.commands += 1
        self.exit_code = self.error = self.run_again_after_s = None
        self.judge.command_begins()
        process = Process(self.primary, self.primary.init, "laggard", {}, adopts=True)
        process.tag = "controller"
        process.on_end = self._command_ended
        self.command = process
        process.run(self._run_command)

    def _command_ended(self, process: Process) -> None:
        self.exit_code = process.exit_code
        assert self.exit_code is not None
        self.judge.command_ended(self.exit_code, self.error, by_fault=self.run_again_after_s is not None)
        self.scheduler.wake_driver()

    def _run_command(self) -> int:
        plan = self.plan
        StopSignals().listen()
        account = _Listener(self)
        try:
            supervisor = state_server_supervisor.StateSupervisor
            with supervisor(self.directory, job="job", host="127.0.0.1", kills=lambda: 0) as keeper:
                job_plan = JobPlan(
                    ["train"],
                    plan.settings,
                    plan.grace_s,
                    JobTelemetry(0, 0, TelemetrySettings()),
                    Cluster,
                    self.directory / str(self.commands),
                    hang_timeout=plan.hang_timeout_s,
                    per_node=plan.per_node,
                    below=random.Random(self.seed).randrange,
                )
                allocation: Any = Allocation(self)
                self.controller = controller_module.Controller(job_plan, allocation, keeper, account)
                return int(self.controller.run())
        except StopRequested as stop:
            return 128 + stop.signum
        except LaggardError as error:
            self.error = error
            self.judge.told("error", f"{type(error).__name__}: {error}")
            return 1

    # -- processes

    def start_agent(self, host: str, mark: str) -> AgentHandle:
        """Start the agent of a node."""
        controller = here()
        local = host == self.plan.hosts[0] or not self.plan.remote
        link = None if local else self.links[host]
        where = self.primary if local else self.machine.hosts[host]
        commands, answers = Pipe(self.scheduler, link), Pipe(self.scheduler, link)
        agent = Process(where, controller if local else where.init, "agent", {AGENT_MARK: mark}, adopts=True)
        agent.tag = ("agent", host)
        agent.files += [commands.reader, answers.writer]
        self.machine.files[commands.reader.fd] = commands.reader
        controller.files += [commands.writer, answers.reader]
        lease_s = 300.0 if local else LEASE_S
        agent.run(lambda: self._run_agent(commands, answers, lease_s))
        number = self.commands

        def agent_ended(_: Process) -> None:
            if agent.exit_code == -signal.SIGKILL:
                is_cut = link is not None and link.is_cut
                self.judge.agent_killed(number, host, is_cut=is_cut or controller.ended)

        agent.on_end = agent_ended
        if link is None:
            return AgentHandle(agent, commands, answers)
        relay = Process(self.primary, controller, "relay", {})
        relay.tag = ("relay", host)

        def relay_ended(_: Process) -> None:
            commands.break_off()
            commands.over(commands.end)
            answers.end()
            answers.over(answers.break_off)

        def connection_ended(_: Process) -> None:
            agent_ended(agent)
            answers.over(lambda: relay.exit(agent.exit_code or 0))

        relay.on_end = relay_ended
        agent.on_end = connection_ended
        return AgentHandle(relay, commands, answers)

    def _run_agent(self, commands: Pipe, answers: Pipe, lease_s: float) -> int:
        agent = here()
        agent.handlers[signal.SIGTERM] = _exit_by_sigterm
        until_s = self.scheduler.now_s + self.scheduler.chance.uniform(0.1, 0.6)
        while self.scheduler.now_s < until_s:
            self.scheduler.block(until_s - self.scheduler.now_s)
        reader: Any = commands.reader
        writer: Any = answers.writer
        try:
            Agent(reader, writer, lease_s).run()
        except BrokenPipeError:
            return 0
        except LaggardError as error:
            self.judge.told("agent", f"{agent}: {error}")
            return 1
        return 0

    def _start_program(self, process: Process, command: list[str]) -> None:
        if command == ["train"]:
            process.tag = "program"
            process.command = self.commands
            self.judge.program_starts(process)
            self.program.start(process)
        elif command[0] == "valkey-server":
            process.tag = "state server"
        elif any("node_check" in word or "stack_dump" in word for word in command):
            process.tag = "question"
            answer(process)
        elif "rank_watch" in command[-1]:
            process.tag = "sidecar"
            watch_ranks(process, self.disk)
        else:
            process.tag = "sidecar"


def _exit_by_sigterm(*_: object) -> None:
    raise SystemExit(143)


@contextlib.contextmanager
def simulated_world() -> Iterator[Path]:
    """Put the simulated machine in place of the real one; yield a folder for the few files that are written."""
    libc = type("Libc", (), {"prctl": staticmethod(lambda *_: 0)})
    with contextlib.ExitStack() as stack:
        in_memory = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lt-sim-", dir=in_memory)))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        for command in range(1, MAX_COMMANDS + 1):
            (directory / str(command)).mkdir(mode=0o700)
            for number in range(1, MAX_NODES + 1):
                (directory / str(command) / str(number)).mkdir(mode=0o700)
        stack.enter_context(replaced_modules())
        for target, name, value in (
            (connection.Endpoint, "connect", _connect),
            (agent_processes, "_libc", libc),
            (folder, "log_to_file", lambda _: None),
            (launches_module, "port_for_later", lambda: 29500),
            (launches_module, "save_logs", lambda *_: None),
            (ShardServers, "files", lambda *_: {}),
            (program_module, "StderrTee", _StderrTee),
            (resource_manager, "ThreadPoolExecutor", Executor),
            (launches_module, "sys", SimpleNamespace(stdout=_NOWHERE, stderr=_NOWHERE)),
            (state_server_supervisor, "StateServer", SimulatedServer),
            (hang, "MIN_RANK_S", MIN_SILENCE_S),
            (hang, "MIN_OUTSIDE_S", MIN_SILENCE_S),
            (controller_module, "decide", _watched(decide)),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield directory


def _watched(decide: Any) -> Any:
    def watched(settings: Settings, status: Any, event: Any, **circumstances: Any) -> Any:
        decision = decide(settings, status, event, **circumstances)
        machine().judge.decided(settings, status, event, decision)
        return decision

    return watched


def _connect(endpoint: Any, *, timeout_s: float = 5.0) -> Any:
    del endpoint
    return Client(machine().disk, timeout_s)
