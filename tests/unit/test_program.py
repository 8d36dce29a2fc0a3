"""What PROGRAM may be on the command line, and the running program's standard error."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laggard.resilience.errors import ProcessesStillRunningError, ProgramError
from laggard.resilience.nodes.program import Program, command_of, command_of_module
from tests.waiting import DEADLINE_S, Gate, wait_until


@contextmanager
def terminal_as_stderr() -> Iterator[None]:
    """Make a terminal our standard error for a while; not in a fixture, after which pytest puts its own file there."""
    reader, terminal = os.openpty()
    before, handler = os.dup(2), signal.getsignal(signal.SIGWINCH)
    os.dup2(terminal, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        signal.signal(signal.SIGWINCH, handler)
        for fd in (reader, terminal, before):
            os.close(fd)


def run(source: str, *arguments: str) -> Program:
    return Program([sys.executable, "-c", source, *arguments], 0, {}, threading.Condition(), "node1")


def test_a_python_file_runs_with_this_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.touch()
    assert command_of(str(program), ["--plot"]) == [sys.executable, str(program), "--plot"]


def test_a_module_runs_with_this_interpreter_from_the_working_directory_or_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").touch()
    for name in ("mine.train", "json.tool", "timeit"):
        assert command_of_module(name, ["--plot"]) == [sys.executable, "-m", name, "--plot"]
    with pytest.raises(ProgramError, match=r"^mien\.train is not a module, neither of this folder nor an installed"):
        command_of_module("mien.train", [])


def test_a_command_is_found_on_the_path() -> None:
    command = command_of("sh", ["-c", "true"])
    assert Path(command[0]).is_absolute()
    assert command[1:] == ["-c", "true"]


def test_a_folder_with_a_main_module_is_run_by_this_interpreter(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").touch()
    assert command_of(str(tmp_path), ["--fast"]) == [sys.executable, str(tmp_path), "--fast"]


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ProgramError, match=r"^missing\.py does not exist$"):
        command_of("missing.py", [])
    with pytest.raises(ProgramError, match=r"^missing-command is not a program, neither a file nor on PATH$"):
        command_of("missing-command", [])


def test_a_file_that_cannot_be_run_is_named_with_what_to_do_about_it(tmp_path: Path) -> None:
    program = tmp_path / "job"
    program.touch(mode=0o644)
    with pytest.raises(ProgramError, match=r"cannot be run: make it executable \(chmod \+x\) or give a \.py file"):
        command_of(str(program), [])
    with pytest.raises(ProgramError, match=r"is a folder without a __main__\.py: name the file to run"):
        command_of(str(tmp_path), [])


def test_a_script_in_the_working_directory_is_named_with_how_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job-of-mine").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramError, match=r"^job-of-mine is not on PATH: .* write \./job-of-mine$"):
        command_of("job-of-mine", [])
    assert command_of("./job-of-mine", ["a"]) == ["./job-of-mine", "a"]


def test_the_last_lines_of_standard_error_are_known_once_the_program_has_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = run("import sys; print('almost'); sys.exit('no data')")
    assert program.wait(DEADLINE_S)
    assert (program.exit_code, program.last_lines) == (1, ("no data",))
    assert capfd.readouterr() == ("almost\n", "no data\n")


def test_a_program_that_is_killed_has_last_lines_too(tmp_path: Path) -> None:
    Gate(tmp_path / "gate")
    program = run("import sys; print('here', file=sys.stderr); open(sys.argv[1]).readline()", str(tmp_path / "gate"))
    wait_until(lambda: program.last_lines or program.ended)
    assert not program.ended
    program.kill()
    assert (program.exit_code, program.last_lines) == (-signal.SIGKILL, ("here",))


def test_a_process_that_the_program_leaves_may_still_write(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    left = "import sys; open(sys.argv[1]).readline(); print('later', file=sys.stderr)"
    program = run(
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); sys.exit('now')",
        left,
        str(tmp_path / "gate"),
    )
    assert program.wait(DEADLINE_S)
    assert program.last_lines == ("now",)
    gate.open()
    wait_until(lambda: program.last_lines == ("now", "later"))
    assert capfd.readouterr().err.startswith("now\n")


def test_the_program_sees_the_window_of_our_terminal_change(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    size = "print(*os.get_terminal_size(2), file=sys.stderr)"
    with terminal_as_stderr():
        program = run(f"import os, sys; {size}; open(sys.argv[1]).readline(); {size}", str(tmp_path / "gate"))
        wait_until(lambda: program.last_lines or program.ended)
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("4H", 33, 121, 0, 0))
        signal.raise_signal(signal.SIGWINCH)
        gate.open()
        assert program.wait(DEADLINE_S)
        assert program.last_lines == ("0 0", "121 33")


def test_a_program_that_cannot_be_killed_is_named_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal reaches a process that waits in the kernel; here, none is sent."""
    program = run("import signal; signal.pause()")
    with monkeypatch.context() as unkillable:
        unkillable.setattr("subprocess.Popen.kill", lambda _: None)
        with pytest.raises(ProcessesStillRunningError, match=rf"processes {program.pid} \(\w+.*\) could not be ended"):
            program.kill(0.1)
    monkeypatch.undo()
    program.kill()
    assert program.exit_code == -signal.SIGKILL
