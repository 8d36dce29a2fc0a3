"""A node's agent leaves nothing behind, whatever its descendants do to get away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from resilience.tasks import WINDOW_BYTES

DEADLINE_S = 20.0

# Forks twice and leaves its session: the classic way to get rid of one's parents.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


class AgentAtWork:
    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "resilience.agent"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear_any(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def hear(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["event"] == event:
                return message
        raise AssertionError(f"the agent ended without saying {event}")

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


def wait_until(done: Any) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < until_s, "it did not come in time"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet collected does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def start_daemon(agent: AgentAtWork, directory: Path, environment: dict[str, str]) -> int:
    """Have the agent start a process, in Ray's place, that starts a daemon; return the daemon's pid."""
    pid_file = directory / "pid"
    agent.say(do="set-up", directory=str(directory), files={}, environment=environment)
    agent.say(do="start-ray", command=[sys.executable, "-c", DAEMON, str(pid_file)], arguments=[])
    agent.hear("ray-started")
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    return int(pid_file.read_text())


def test_a_closed_pipe_ends_the_node_daemons_included(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {})
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    agent.process.wait(DEADLINE_S)
    assert not is_running(daemon)


def test_a_sweep_ends_old_launches_and_spares_the_current_one(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {"LAGGARD_LAUNCH": "2"})
    agent.say(do="sweep", below=2)
    assert agent.hear("swept")["ended"] == 0
    assert is_running(daemon)
    agent.say(do="sweep", below=3)
    assert agent.hear("swept")["ended"] == 2  # the daemon and what was started in Ray's place
    wait_until(lambda: not is_running(daemon))


def test_the_end_of_ray_is_told_and_takes_the_rest_with_it(agent: AgentAtWork, tmp_path: Path) -> None:
    daemon = start_daemon(agent, tmp_path, {})
    (ray,) = (p for p in psutil.Process(agent.process.pid).children() if p.pid != daemon)
    ray.kill()
    assert agent.hear("ray-ended")["exit_code"] == -9
    wait_until(lambda: not is_running(daemon))


def test_a_node_is_stopped_by_force_if_it_must_be(agent: AgentAtWork, tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    agent.say(do="start-ray", command=[sys.executable, "-c", stubborn], arguments=[])
    pid = agent.hear("ray-started")["pid"]
    agent.say(do="stop-ray")
    agent.hear("ray-ended")
    assert not is_running(pid)


def test_private_files_are_private(agent: AgentAtWork, tmp_path: Path) -> None:
    directory = tmp_path / "node"
    agent.say(do="set-up", directory=str(directory), files={"secret": "s3cret"}, environment={})
    agent.say(do="sweep", below=0)
    agent.hear("swept")
    assert (directory / "secret").read_text() == "s3cret"
    assert (directory / "secret").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_sidecar_can_be_ended_before_the_agent(agent: AgentAtWork, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeper = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    agent.say(do="start-sidecar", name="sleeper", command=[sys.executable, "-c", sleeper])
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    agent.say(do="stop-sidecar", name="sleeper")
    wait_until(lambda: not is_running(int(pid_file.read_text())))


def test_an_agent_that_hears_nothing_for_its_lease_ends_the_node(tmp_path: Path) -> None:
    """As behind a network that is cut: its pipe stays open."""
    serve = "import sys; from resilience.agent import Agent; Agent(sys.stdin.buffer, sys.stdout, lease_s=2).run()"
    agent = AgentAtWork("-c", serve)
    daemon = start_daemon(agent, tmp_path, {})
    agent.process.wait(DEADLINE_S)
    assert not is_running(daemon)
    agent.end()


def test_an_agent_beats_while_it_carries_out_a_command(agent: AgentAtWork, tmp_path: Path) -> None:
    """Its raylet does not end when asked to, so it is waited for."""
    ready = tmp_path / "ready"
    stubborn = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    raylet = tmp_path / "raylet"
    raylet.symlink_to(sys.executable)
    start = f"import subprocess; subprocess.run([{str(raylet)!r}, '-c', {stubborn!r}])"
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    agent.say(do="start-ray", command=[sys.executable, "-c", start], arguments=[])
    agent.hear("ray-started")
    wait_until(ready.exists)
    agent.say(do="sweep", below=0)
    agent.hear("swept")
    agent.say(do="stop-ray")
    assert agent.process.stdout is not None
    events = iter(lambda: json.loads(agent.process.stdout.readline())["event"], "ray-ended")  # type: ignore[union-attr]
    assert list(events).count("alive") >= 2


CHATTERBOX = "import sys; sys.stdout.write('line\\n' * 200_000)"


def test_a_task_whose_output_nobody_takes_waits_and_its_node_stays_alive(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    command = [sys.executable, "-c", CHATTERBOX]
    agent.say(do="start-task", name="talk", command=command, environment={}, directory=None, relayed=True)
    text = ""
    while len(text) < WINDOW_BYTES:
        text += agent.hear("output")["text"]
    for _ in range(2):
        assert agent.hear_any()["event"] == "alive"
    agent.say(do="printed", bytes=len(text))
    while (message := agent.hear_any())["event"] != "task-ended":
        if message["event"] == "output":
            text += message["text"]
            agent.say(do="printed", bytes=len(message["text"]))
    assert message["exit_code"] == 0
    assert text == "line\n" * 200_000


def test_a_task_that_cannot_be_started_says_why(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    command = [sys.executable, "-c", ""]
    agent.say(do="start-task", name="t", command=command, environment={}, directory="/nowhere", relayed=True)
    assert agent.hear("output")["text"].endswith("cannot be started in /nowhere: No such file or directory\n")
    assert agent.hear("task-ended")["exit_code"] == 127


def test_a_sweep_ends_the_tasks_of_an_old_launch_with_all_their_descendants(agent: AgentAtWork, tmp_path: Path) -> None:
    agent.say(do="set-up", directory=str(tmp_path), files={}, environment={})
    pid_file = tmp_path / "daemon"
    command = [sys.executable, "-c", DAEMON, str(pid_file)]
    agent.say(
        do="start-task", name="t", command=command, environment={"LAGGARD_LAUNCH": "0"}, directory=None, relayed=True
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    agent.say(do="sweep", below=1)
    assert agent.hear("swept")["ended"] == 2
    assert agent.hear("task-ended")["exit_code"] == -9
    wait_until(lambda: not is_running(int(pid_file.read_text())))
