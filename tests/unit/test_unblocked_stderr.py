"""What is written to standard error waits for nobody, and comes out in order once somebody reads."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click
import pytest
from rich.console import Console

from laggard.resilience.command.unblocked_stderr import UnblockedText, unblocked_stderr
from tests.waiting import DEADLINE_S

LINE = "x" * 999 + "\n"


def test_a_writer_does_not_wait_for_a_reader_and_nothing_is_lost() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe, os.fdopen(reader) as lines:
        text = UnblockedText(pipe)
        for number in range(1000):  # far more than a pipe holds
            assert text.write(f"{number} {LINE}") == len(f"{number} {LINE}")
        assert not text.drain(0.01)
        assert [int(lines.readline().partition(" ")[0]) for _ in range(1000)] == [*range(1000)]
        assert text.drain(DEADLINE_S)


def test_what_nobody_can_read_any_more_is_dropped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        text = UnblockedText(pipe)
        text.write(LINE)
        assert text.drain(DEADLINE_S)


def test_what_is_written_after_the_stream_is_closed_does_not_go_to_whoever_has_its_number_since(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        text, number = UnblockedText(stderr), stderr.fileno()
    (tmp_path / "other").touch()
    os.dup2(other := os.open(tmp_path / "other", os.O_WRONLY), number)
    text.write("late\n")
    assert text.drain(DEADLINE_S)
    assert [(tmp_path / name).read_text() for name in ("stderr", "other")] == ["", ""]
    os.close(number)
    if other != number:
        os.close(other)


def test_it_is_a_terminal_if_the_other_is_one() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb") as terminal, os.fdopen(theirs, "w") as stderr:
        text = UnblockedText(stderr)
        assert (text.isatty(), text.fileno(), text.encoding) == (True, stderr.fileno(), stderr.encoding)
        text.write("here\n")
        assert terminal.read(6) == b"here\r\n"
    with Path(os.devnull).open("w") as nothing:
        assert not UnblockedText(nothing).isatty()


def test_libraries_that_look_for_standard_error_write_to_it(capfd: pytest.CaptureFixture[str]) -> None:
    with unblocked_stderr():
        click.echo("from click", err=True)
        Console(stderr=True).print("from rich")
        logging.getLogger("test").addHandler(handler := logging.StreamHandler())
        logging.getLogger("test").warning("from logging")
        logging.getLogger("test").removeHandler(handler)
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("from")] == ["from click", "from rich", "from logging"]


def test_standard_error_is_put_back_with_everything_written() -> None:
    before = sys.stderr
    with unblocked_stderr():
        assert isinstance(sys.stderr, UnblockedText)
        sys.stderr.write("")
    assert sys.stderr is before
