"""A node's agent leaves nothing behind, whatever its descendants do to escape."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import TypeVar

import psutil
import pytest

from laggard.resilience.agent.tasks import WINDOW_BYTES
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.resilience.wire import ALIVE, Command, Report, decode, encode
from laggard.resilience.wire.checks import AskTargets, CheckNode, NodeChecked, TargetsAsked
from laggard.resilience.wire.node import Ping, Pong, SetUp, ToldToEnd
from laggard.resilience.wire.ray import RayEnded, StartRay, StopRay
from laggard.resilience.wire.tasks import (
    EndLeftovers,
    LeftoversEnded,
    Output,
    Printed,
    SignalTask,
    StartTask,
    TaskEnded,
    WillRestart,
)
from tests.processes import command_line, is_alive
from tests.waiting import wait_until

DEADLINE_S = 20.0

# Forks twice and leaves its session: the classic way to escape a parent.
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        signal.pause()
    os._exit(0)
signal.pause()
"""


# By name: of a class with slots there was another one before, which may still be there.
REPORTS = {kind.__name__: kind for kind in Report.__subclasses__()}
_Report = TypeVar("_Report", bound=Report)


class AgentAtWork:
    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "laggard.resilience.agent.agent"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def send(self, command: Command) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(command))
        self.process.stdin.flush()

    def receive_any(self) -> Report | None:
        """Return the next report, or None for a heartbeat."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line == ALIVE:
            return None
        report: Report = decode(line, *REPORTS.values())
        return report

    def receive(self, kind: type[_Report]) -> _Report:
        while True:
            if isinstance(report := self.receive_any(), kind):
                return report

    def ping(self) -> None:
        self.send(Ping())
        self.receive(Pong)

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(DEADLINE_S)


@pytest.fixture
def agent() -> Iterator[AgentAtWork]:
    at_work = AgentAtWork()
    yield at_work
    at_work.end()


def is_running(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def start_daemon(agent: AgentAtWork, directory: Path, environment: dict[str, str]) -> int:
    """Have the agent start a process, in Ray's place, that starts a daemon; return the daemon's pid."""
    pid_file = directory / "pid"
    agent.send(SetUp(str(directory), environment=environment))
    agent.send(StartRay((sys.executable, "-c", DAEMON, str(pid_file)), ()))
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    return int(pid_file.read_text())


def test_an_agent_ends_what_the_program_of_a_killed_controller_has_left_on_its_node(
    agent: AgentAtWork, tmp_path: Path
) -> None:
    environment = {"LAGGARD_ENDPOINT_FILE": str(tmp_path / "endpoint.json")}
    agent.send(SetUp(str(tmp_path), environment=environment))
    agent.ping()
    source = "import signal; signal.pause()"
    stray = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, **environment})
    other = subprocess.Popen([sys.executable, "-c", source])
    try:
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        assert stray.wait(DEADLINE_S) == -signal.SIGKILL
        assert agent.process.wait(DEADLINE_S) == 0
        assert is_running(other.pid)
    finally:
        for process in (stray, other):
            process.kill()
            process.wait(DEADLINE_S)


def test_how_often_an_agent_sends_a_heartbeat_follows_from_the_number_of_nodes(tmp_path: Path) -> None:
    agent = AgentAtWork(
        "-c",
        "import sys; from laggard.resilience.agent.agent import Agent, HeartbeatTiming;"
        "HeartbeatTiming.interval_s = property(lambda timing: 0.001 if timing.n_nodes == 777 else 0.5);"
        "Agent(sys.stdin.buffer, sys.stdout.buffer).run()",
    )
    agent.send(SetUp(str(tmp_path), n_nodes=777))
    assert agent.process.stdout is not None
    for _ in range(2000):  # twice a second that would outlast the time that a test has
        assert agent.process.stdout.readline() == ALIVE
    agent.end()


def test_an_agent_that_is_stopped_leaves_the_controllers_program_alone(agent: AgentAtWork, tmp_path: Path) -> None:
    """Slurm stops everything at once, and the program has its grace period to save its work."""
    environment = {"LAGGARD_ENDPOINT_FILE": str(tmp_path / "endpoint.json")}
    agent.send(SetUp(str(tmp_path), environment=environment))
    agent.ping()
    program = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment})
    try:
        agent.process.send_signal(signal.SIGTERM)
        agent.process.wait(DEADLINE_S)
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()


def test_an_agent_that_is_stopped_says_so_and_gives_the_copies_time_to_save(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("copy", ("/bin/sh", "-c", "echo here; exec sleep 600"), {}, relayed=True))
    assert agent.receive(Output).data == b"here\n"
    agent.process.send_signal(signal.SIGTERM)
    agent.receive(ToldToEnd)
    agent.send(SignalTask("copy", signal.SIGTERM))
    assert agent.receive(TaskEnded).exit_code == -signal.SIGTERM
    assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGTERM  # although its pipe is open


def test_a_warning_of_slurm_to_all_steps_ends_no_agent(agent: AgentAtWork) -> None:
    agent.ping()
    agent.process.send_signal(signal.SIGUSR1)
    agent.process.send_signal(signal.SIGUSR2)
    agent.ping()


def test_a_closed_pipe_ends_the_node_daemons_included(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {})
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    agent.process.wait(DEADLINE_S)
    assert not is_running(daemon)


def test_leftovers_of_old_launches_are_ended_and_the_current_one_is_spared(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {"LAGGARD_LAUNCH": "2"})
    agent.send(EndLeftovers(2))
    assert agent.receive(LeftoversEnded).n_ended == 0
    assert is_running(daemon)
    agent.send(EndLeftovers(3))
    assert agent.receive(LeftoversEnded).n_ended == 2  # the daemon and what was started in Ray's place
    wait_until(lambda: not is_running(daemon))


# A rank that has started a worker and adopts the next launch.
ADOPTS = """
import os, signal, subprocess, sys
from laggard.system import own_environment
worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
own_environment.show({**os.environ, "LAGGARD_LAUNCH": "10"}, lambda name: name.startswith("LAGGARD_"))
assert subprocess.run(["printenv", "LAGGARD_LAUNCH", "PATH"], capture_output=True, text=True).stdout == (
    "9\\n" + os.environ["PATH"] + "\\n"
)
print(worker.pid, open("/proc/self/environ").read().count("LAGGARD_LAUNCH=10"), flush=True)
signal.pause()
"""


def test_what_a_rank_has_started_that_adopted_a_later_launch_is_spared_with_it(
    agent: AgentAtWork, tmp_path: Path
) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("rank", (sys.executable, "-c", ADOPTS), {"LAGGARD_LAUNCH": "9"}, relayed=True))
    worker, shown = agent.receive(Output).data.split()
    assert shown == b"1"
    agent.send(EndLeftovers(10))
    assert agent.receive(LeftoversEnded).n_ended == 0
    assert is_running(int(worker))
    agent.send(EndLeftovers(11))
    assert agent.receive(LeftoversEnded).n_ended == 2
    wait_until(lambda: not is_running(int(worker)))


def test_the_end_of_ray_is_reported_and_the_rest_is_ended_with_it(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {})
    (ray,) = (p for p in psutil.Process(agent.process.pid).children() if p.pid != daemon)
    ray.kill()
    agent.receive(RayEnded)
    wait_until(lambda: not is_running(daemon))


def test_a_node_is_stopped_by_force_if_it_must_be(agent: AgentAtWork, tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartRay((sys.executable, "-c", stubborn), ()))
    agent.ping()
    (pid,) = (each.pid for each in psutil.Process(agent.process.pid).children())
    agent.send(StopRay())
    agent.receive(RayEnded)
    assert not is_running(pid)


def test_private_files_are_private(agent: AgentAtWork, tmp_path: Path) -> None:
    directory = tmp_path / "node"
    agent.send(SetUp(str(directory), {"secret": "s3cret"}))
    agent.send(EndLeftovers(0))
    agent.receive(LeftoversEnded)
    assert (directory / "secret").read_text() == "s3cret"
    assert (directory / "secret").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_sidecar_can_be_ended_before_the_agent(agent: AgentAtWork, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeper = f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid())); signal.pause()"
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("sleeper", (sys.executable, "-c", sleeper), outlives_launches=True, restarts=True))
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    agent.send(SignalTask("sleeper", signal.SIGKILL))
    wait_until(lambda: not is_running(int(pid_file.read_text())))


def test_a_sidecar_that_ends_is_started_again_until_it_is_stopped(agent: AgentAtWork, tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = f"with open({str(count)!r}, 'a') as file: file.write('x')\nimport signal; signal.pause()"
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("helper", (sys.executable, "-c", program), outlives_launches=True, restarts=True))
    for starts in (1, 2):
        wait_until(lambda: count.exists() and len(count.read_text()) == starts)  # noqa: B023 - called at once
        (helper,) = (each for each in psutil.Process(agent.process.pid).children() if program in command_line(each))
        helper.kill()
        ended = agent.receive(WillRestart)
        assert (ended.exit_code, ended.again_s) == (-9, float(starts))
    agent.send(SignalTask("helper", signal.SIGKILL))  # while it waits
    agent.send(StartTask("helper", (sys.executable, "-c", program), outlives_launches=True, restarts=True))
    wait_until(lambda: len(count.read_text()) == 3)
    agent.ping()
    assert len(count.read_text()) == 3
    (helper,) = (each for each in psutil.Process(agent.process.pid).children() if program in command_line(each))
    agent.send(SignalTask("helper", signal.SIGKILL))
    wait_until(lambda: not is_running(helper.pid))


def test_a_task_that_waits_to_be_started_again_can_be_ended(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("t", (sys.executable, "-c", "raise SystemExit(3)"), {}, restarts=True))
    assert agent.receive(WillRestart).exit_code == 3
    agent.send(SignalTask("t", 15))
    assert agent.receive(TaskEnded).exit_code == 3
    agent.ping()


def test_an_agent_that_receives_nothing_for_its_lease_ends_the_node(tmp_path: Path) -> None:
    """As if the network were cut: its pipe stays open."""
    imports = "import sys; from laggard.resilience.agent.agent import Agent"
    agent = AgentAtWork("-c", f"{imports}; Agent(sys.stdin.buffer, sys.stdout.buffer, lease_s=2).run()")
    daemon = start_daemon(agent, tmp_path, {})
    agent.process.wait(DEADLINE_S)
    assert not is_running(daemon)
    agent.end()


def test_an_agent_sends_heartbeats_while_it_carries_out_a_command(agent: AgentAtWork, tmp_path: Path) -> None:
    """Its raylet ignores SIGTERM, so the agent waits for it."""
    ready = tmp_path / "ready"
    stubborn = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); signal.pause()"
    raylet = tmp_path / "raylet"
    raylet.symlink_to(sys.executable)
    start = f"import subprocess; subprocess.run([{str(raylet)!r}, '-c', {stubborn!r}])"
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartRay((sys.executable, "-c", start), ()))
    wait_until(ready.exists)
    agent.send(EndLeftovers(0))
    agent.receive(LeftoversEnded)
    agent.send(StopRay())
    reports = iter(lambda: type(agent.receive_any()), RayEnded)
    assert list(reports).count(NoneType) >= 2


CHATTERBOX = "import sys; sys.stdout.write('line\\n' * 200_000)"


def test_a_task_whose_output_is_not_printed_waits_and_its_node_stays_alive(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("talk", (sys.executable, "-c", CHATTERBOX), {}, relayed=True))
    data = b""
    while len(data) < WINDOW_BYTES:
        data += agent.receive(Output).data
    for _ in range(2):
        assert agent.receive_any() is None
    agent.send(Printed(len(data)))
    while not isinstance(report := agent.receive_any(), TaskEnded):
        if isinstance(report, Output):
            data += report.data
            agent.send(Printed(len(report.data)))
    assert report.exit_code == 0
    assert data == b"line\n" * 200_000


def test_a_task_that_cannot_be_started_says_why(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(StartTask("t", (sys.executable, "-c", ""), {}, "/nowhere", relayed=True))
    assert agent.receive(Output).data.endswith(b"cannot be started in /nowhere: No such file or directory\n")
    assert agent.receive(TaskEnded).exit_code == 127


@pytest.mark.parametrize("relayed", [True, False])
def test_an_agent_whose_disk_is_full_says_so_of_the_task_and_lives_on(
    agent: AgentAtWork, tmp_path: Path, relayed: bool
) -> None:
    (tmp_path / "hosts").symlink_to("/dev/full")
    (tmp_path / "t.log").symlink_to("/dev/full")
    task = StartTask("t", (sys.executable, "-c", ""), {}, files={"hosts": "node1"}, relayed=relayed)
    agent.send(SetUp(str(tmp_path)))
    agent.send(task)
    end = agent.receive(TaskEnded)
    assert end.exit_code == 127
    assert end.error_output == f"{tmp_path}/hosts cannot be written: No space left on device"
    agent.send(replace(task, name="after", files={}, relayed=True))
    assert agent.receive(TaskEnded).exit_code == 0


def test_the_tasks_of_an_old_launch_are_ended_with_all_their_descendants(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    pid_file = tmp_path / "daemon"
    command = (sys.executable, "-c", DAEMON, str(pid_file))
    agent.send(StartTask("t", command, {"LAGGARD_LAUNCH": "0"}, relayed=True))
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    agent.send(EndLeftovers(1))
    assert agent.receive(LeftoversEnded).n_ended == 2
    assert agent.receive(TaskEnded).exit_code == -9
    wait_until(lambda: not is_running(int(pid_file.read_text())))


def test_an_agent_checks_its_node(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    agent.send(CheckNode(("0",), probe=True))
    check = agent.receive(NodeChecked).found
    assert check is not None
    assert check.free_bytes[str(Path.cwd())] > 0
    assert check.gpus.keys() == {"0"}
    assert check.memory is not None
    assert 0 < check.memory.free_bytes <= check.memory.total_bytes


def agent_that_checks(**settings: object) -> AgentAtWork:
    source = (
        "import sys; from laggard.resilience.agent.agent import Agent, CheckSettings; "
        f"Agent(sys.stdin.buffer, sys.stdout.buffer, checks=CheckSettings(**{settings!r})).run()"
    )
    return AgentAtWork("-c", source)


def test_a_process_that_waits_for_its_question_answers_the_next_check_and_ends_with_the_agent(tmp_path: Path) -> None:
    with contextlib.ExitStack() as last:
        agent = agent_that_checks(ready_after_s=0.0, deadline_s=60.0)
        last.callback(agent.end)
        agent.send(SetUp(str(tmp_path)))

        def ready() -> list[psutil.Process]:
            children = psutil.Process(agent.process.pid).children()
            return [each for each in children if "laggard.resilience.agent.node_check" in command_line(each)]

        def checked(*devices: str) -> set[str]:
            agent.send(CheckNode(devices))
            found = agent.receive(NodeChecked).found
            assert found is not None
            return {*found.gpus}

        assert checked() == set()
        wait_until(lambda: len(ready()) == 1)  # the one that has answered ends
        (first,) = ready()
        assert checked("0") == {"0"}  # what the next one is asked is not known before
        wait_until(lambda: len(ready()) == 1 and ready() != [first])
        (second,) = ready()
        second.kill()
        wait_until(lambda: not is_alive(second))
        assert checked("1") == {"1"}
        wait_until(lambda: len(ready()) == 1)
        (third,) = ready()
    wait_until(lambda: not is_alive(third))


def test_a_check_whose_process_does_not_end_although_it_was_killed_holds_up_nothing(tmp_path: Path) -> None:
    # A descendant that keeps the pipe open stands for a process that is held in the kernel.
    agent = agent_that_checks(command=["sh", "-c", "sleep 600 & wait"], deadline_s=0.5)
    agent.send(SetUp(str(tmp_path)))
    for _ in range(2):
        agent.send(CheckNode(()))
        assert agent.receive(NodeChecked).found is None
    agent.end()


def test_an_agent_asks_what_answers_from_its_node(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.send(SetUp(str(tmp_path)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = Target("port", "127.0.0.1", server.getsockname()[1])
        agent.send(AskTargets(7, (here, Target("name", "nothing.invalid"))))
        assert agent.receive(TargetsAsked) == TargetsAsked(7, (None, NoAnswer("not resolved")))


def test_a_check_that_hangs_is_ended(tmp_path: Path) -> None:
    agent = agent_that_checks(command=["sleep", "600"])
    agent.send(SetUp(str(tmp_path)))
    agent.send(CheckNode(()))
    assert agent.receive(NodeChecked).found is None
    agent.end()
