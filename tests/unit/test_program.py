"""What may stand where PROGRAM stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from resilience.program import ProgramError, command_of


def test_a_python_file_runs_with_this_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.touch()
    assert command_of(str(program), ["--plot"]) == [sys.executable, str(program), "--plot"]


def test_a_command_is_found_on_the_path() -> None:
    command = command_of("sh", ["-c", "true"])
    assert Path(command[0]).is_absolute()
    assert command[1:] == ["-c", "true"]


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ProgramError, match=r"^there is no program missing\.py$"):
        command_of("missing.py", [])
    with pytest.raises(ProgramError, match=r"^there is no program missing-command, as a file or on PATH$"):
        command_of("missing-command", [])


def test_a_file_that_cannot_be_run_is_named_with_the_way_out(tmp_path: Path) -> None:
    program = tmp_path / "job"
    program.touch(mode=0o644)
    with pytest.raises(ProgramError, match=r"cannot be run: make it executable \(chmod \+x\) or give a \.py file"):
        command_of(str(program), [])
    with pytest.raises(ProgramError, match="is a directory, not a program"):
        command_of(str(tmp_path), [])
