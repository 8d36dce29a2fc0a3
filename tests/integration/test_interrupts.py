"""Ctrl-C at any time: exit code 130 and no traceback, of the command, while it loads too, and of the examples."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laggard.system.ports import free_port
from laggard.telemetry.dumps.writing import write_dump
from tests.integration.jobs import RunningJob
from tests.made_up_job import T0, series
from tests.waiting import DEADLINE_S, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
LIBRARIES = ("click", "redis")
LOADING = "loading"


@contextmanager
def started(*command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose standard input stays open; kill it if the test fails."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str], beginning: str) -> None:
    """Wait until it prints such a line."""
    assert process.stdout is not None
    assert process.stderr is not None
    while not (line := process.stdout.readline()).startswith(beginning):
        assert line, process.stderr.read()


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


@pytest.fixture(scope="module")
def slow_libraries(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder of libraries that take forever to load, and say when they begin."""
    folder = tmp_path_factory.mktemp("libraries")
    for name in LIBRARIES:
        (folder / f"{name}.py").write_text(f"import sys\nprint({LOADING!r}, flush=True)\nsys.stdin.read()\n")
    return str(folder)


def test_while_it_loads(slow_libraries: str) -> None:
    with started(sys.executable, "-m", "laggard", "status", PYTHONPATH=slow_libraries) as process:
        line_of(process, LOADING)
        assert interrupted(process) == (130, "")


def test_while_workers_are_started() -> None:
    script = str(EXAMPLES / "scipy_scale_work.py")
    with started(sys.executable, script, "--size=32", "--mem=65536", "--runtime=1000") as process:
        line_of(process, "using multiprocessing")
        code, err = interrupted(process)
        assert (code, "Traceback" in err) == (130, False), err


def test_while_a_sub_command_loads(slow_libraries: str, tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text((Path(slow_libraries) / "redis.py").read_text())
    with started(sys.executable, "-m", "laggard", "status", PYTHONPATH=str(tmp_path)) as process:
        line_of(process, LOADING)
        assert interrupted(process) == (130, "")


def test_while_a_dump_is_served(tmp_path: Path) -> None:
    write_dump(str(tmp_path), "node1", T0, series())
    dumps = {
        "replay": ("-m", "laggard", "replay", f"--port={free_port('127.0.0.1')}"),
        "mini": (str(EXAMPLES / "mini_telemetry.py"), f"--port={free_port('127.0.0.1')}"),
    }
    for command in dumps.values():
        with started(sys.executable, *command, str(tmp_path)) as process:
            line_of(process, "ssh command: ")
            code, err = interrupted(process)
            assert (code, "Traceback" in err) == (130, False), err


def test_while_nodes_are_asked_and_nothing_is_left(
    start_job: Callable[..., RunningJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 1000\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    job = start_job("--hostlist=localhost,elsewhere.invalid", "--per-node", "true")
    wait_until(asked.exists)
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert "Traceback" not in job.everything()
    assert job.processes() == []


def test_while_the_program_runs(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--local-nodes=1", "--per-node", "sh", "-c", "echo begun; sleep 1000")
    job.wait_for("begun")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert "Traceback" not in job.everything()
    assert job.processes() == []


SAVES = """
import signal, sys, time

try:
    print("begun", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    time.sleep(0.5)  # a second interrupt or SIGTERM would cut it short
    print("saved", flush=True)
"""


@pytest.mark.parametrize(
    ("options", "n_ranks"),
    [
        (["--local-nodes=1"], 1),
        (["--local-nodes=2", "--per-node"], 2),
        (["--local-nodes=1", "--virtual-gpus=2", "--per-device"], 2),
    ],
    ids=["once", "on every node", "for every device"],
)
def test_a_program_that_saves_at_a_keyboard_interrupt_has_its_grace(
    start_job: Callable[..., RunningJob], options: list[str], n_ranks: int
) -> None:
    job = start_job(*options, program=SAVES)
    wait_until(lambda: job.output.count("begun") == n_ranks, job.everything)
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert job.output.count("saved") == n_ranks, job.everything()
    assert "Traceback" not in job.everything()


def test_what_a_script_waits_for_is_interrupted_with_it(start_job: Callable[..., RunningJob], tmp_path: Path) -> None:
    file = tmp_path / "saves.py"
    file.write_text(SAVES)
    job = start_job("--local-nodes=1", "--per-node", "sh", "-c", f"{sys.executable} {file}; echo over")
    job.wait_for("begun")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert "saved" in job.output, job.everything()


def test_ctrl_c_at_a_terminal_reaches_a_program_that_runs_once_and_no_second_signal_follows(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    ours, theirs = os.openpty()
    job = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-m", "laggard", "--local-nodes=1", "saves.py"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
    )
    os.close(theirs)
    screen = bytearray()

    def shows(text: bytes) -> bool:
        screen.extend(os.read(ours, 1 << 16))
        return text in screen

    try:
        wait_until(lambda: shows(b"begun"), screen.decode)
        os.write(ours, b"\x03")
        with contextlib.suppress(OSError):  # nobody has it open any more
            wait_until(lambda: shows(b"no such line"), screen.decode)
        assert job.wait(DEADLINE_S) == 130
    finally:
        job.kill()
        os.close(ours)
    assert (b"saved" in screen, b"Traceback" in screen) == (True, False), screen.decode()
