"""The program's standard error: what arrives, what is kept, and what nobody has to wait for."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from laggard.resilience.nodes.stderr_tee import StderrTee
from tests.waiting import DEADLINE_S, Gate

MEGABYTES = 4 << 20


class Target:
    """A pipe or a terminal that a tee writes to, and what arrives at its other end."""

    def __init__(self, *, terminal: bool, raw: bool = True) -> None:
        self.reader, self.fd = os.openpty() if terminal else os.pipe()
        if terminal and raw:
            tty.setraw(self.fd)

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; wait for all of them."""
        data = b""
        while len(data) < n_bytes:
            assert select.select([self.reader], [], [], DEADLINE_S)[0], f"only {data!r} arrived"
            data += os.read(self.reader, n_bytes - len(data))
        return data

    def is_empty(self) -> bool:
        """Whether nothing more has arrived."""
        return not select.select([self.reader], [], [], 0)[0]

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def stop_reading(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def close(self) -> None:
        for fd in {self.reader, self.fd} - {-1}:
            os.close(fd)


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    made = Target(terminal=request.param)
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[Target]:
    made = Target(terminal=False)
    yield made
    made.close()


@pytest.fixture
def terminal() -> Iterator[Target]:
    made = Target(terminal=True)
    yield made
    made.close()


@pytest.fixture
def nowhere() -> Iterator[BinaryIO]:
    with open(os.devnull, "wb", buffering=0) as file:  # noqa: PTH123 -- a device
        yield file


def start(tee: StderrTee, source: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a Python program that writes to the tee."""
    process = subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, stderr=tee.child_fd)
    tee.close_child_fd()
    return process


def run(tee: StderrTee, source: str, *arguments: str) -> None:
    """Run a Python program that writes to the tee, and drain it."""
    with start(tee, source, *arguments) as process:
        assert process.wait(DEADLINE_S) == 0
    assert tee.drain(DEADLINE_S)


def kept(text: bytes, target: BinaryIO, ring_bytes: int = 1 << 16) -> StderrTee:
    """Return a tee that was given this text."""
    tee = StderrTee(target.fileno(), ring_bytes)
    os.write(tee.child_fd, text)
    assert tee.drain(DEADLINE_S)
    return tee


def test_what_the_program_writes_arrives_unchanged(target: Target) -> None:
    tee = StderrTee(target.fd)
    run(tee, r"import os; os.write(2, b'\x1b[1mone\x1b[0m\r\n\ttwo\n\xff\x00'); os.write(2, b'no line end')")
    expected = b"\x1b[1mone\x1b[0m\r\n\ttwo\n\xff\x00no line end"
    assert target.read(len(expected)) == expected
    assert target.is_empty()


def test_a_terminal_does_to_a_text_what_it_does_to_one_that_it_gets_directly() -> None:
    cooked = Target(terminal=True, raw=False)
    tee = StderrTee(cooked.fd)
    run(tee, "import os; os.write(2, b'a\\n\\tb\\r\\n')")
    assert cooked.read(8) == b"a\r\n\tb\r\r\n"
    assert cooked.is_empty()
    cooked.close()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_program_sees_a_terminal_where_the_target_is_one(*, is_terminal: bool) -> None:
    target = Target(terminal=is_terminal)
    if is_terminal:
        target.resize(33, 121)
    tee = StderrTee(target.fd)
    source = "import os, sys; print(sys.stderr.isatty() and tuple(os.get_terminal_size(2)), file=sys.stderr)"
    run(tee, source)
    assert tee.is_terminal == is_terminal
    assert tee.last_lines() == ("(121, 33)" if is_terminal else "False",)
    target.close()


def test_the_channel_is_resized_with_the_terminal(terminal: Target) -> None:
    tee = StderrTee(terminal.fd)
    terminal.resize(50, 200)
    tee.resize()
    assert os.get_terminal_size(tee.child_fd) == (200, 50)
    tee.close_child_fd()


def test_there_is_nothing_to_resize_without_a_terminal(pipe: Target) -> None:
    tee = StderrTee(pipe.fd)
    tee.resize()
    tee.close_child_fd()


def test_a_terminal_that_is_gone_is_not_asked_for_its_size(terminal: Target) -> None:
    tee = StderrTee(terminal.fd)
    terminal.stop_reading()
    tee.resize()
    tee.close_child_fd()
    tee.resize()


def test_a_pipe_does_where_the_system_has_no_ptys(monkeypatch: pytest.MonkeyPatch, terminal: Target) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "out of pty devices")

    monkeypatch.setattr(os, "openpty", none_left)
    tee = StderrTee(terminal.fd)
    run(tee, "import sys; print(sys.stderr.isatty(), file=sys.stderr)")
    assert terminal.read(6) == b"False\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", ()),
        (b"one\ntwo\n", ("one", "two")),
        (b"one\ntwo", ("one", "two")),
        (b"one\r\n\r\n \n  two  \n", ("one", "  two")),
        (b"\r 10 %\r 20 %\r\x1b[Kdone\n", (" 10 %", " 20 %", "done")),
        (b"\x1b[1;31mError\x1b[0m: \x1b[?25hbad\x1b(B\n\x1b[2A\x1bM", ("Error: bad",)),
        (b"\x1b]8;;file:///x\x1b\\link\x1b]8;;\x1b\\ \x1b]0;title\x07here\n", ("link here",)),
        (b"a\xc3\xa9 \xe2\x88\xb4 \xff\n", ("aé ∴ \ufffd",)),
        (b"bell\x07 and\x00 nothing\x1b", ("bell and nothing",)),
    ],
)
def test_the_last_lines_are_plain_text(text: bytes, lines: tuple[str, ...], nowhere: BinaryIO) -> None:
    tee = kept(text, nowhere)
    assert tee.last_lines() == lines
    tee.close_child_fd()


def test_no_more_than_the_last_lines_are_returned(nowhere: BinaryIO) -> None:
    tee = kept(b"".join(b"line %d\n" % number for number in range(300)), nowhere)
    assert len(tee.last_lines()) == 200
    assert tee.last_lines(2) == ("line 298", "line 299")
    assert tee.last_lines(0) == ()
    tee.close_child_fd()


def test_no_more_than_the_last_bytes_are_kept(nowhere: BinaryIO) -> None:
    tee = kept(b"0123456789\n" * 1000, nowhere, ring_bytes=100)
    assert tee.last_lines() == ("0123456789",) * 9
    os.write(tee.child_fd, b"x" * 1000)
    assert tee.drain(DEADLINE_S)
    assert tee.last_lines() == ("x" * 100,)
    tee.close_child_fd()


def test_the_part_of_a_line_that_is_left_is_kept_if_there_is_no_other(nowhere: BinaryIO) -> None:
    tee = kept(b"first\n0123456789\n", nowhere, ring_bytes=5)
    assert tee.last_lines() == ("6789",)
    tee.close_child_fd()


def test_much_output_arrives_unchanged(target: Target) -> None:
    output = random.Random(1).randbytes(MEGABYTES)
    arrived: list[bytes] = []
    reader = threading.Thread(target=lambda: arrived.append(target.read(len(output))))
    reader.start()
    tee = StderrTee(target.fd)
    run(tee, f"import random, sys; sys.stderr.buffer.write(random.Random(1).randbytes({MEGABYTES}))")
    reader.join(DEADLINE_S)
    assert arrived == [output]
    assert target.is_empty()


def test_everything_is_in_a_file_once_it_is_drained(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("wb", buffering=0) as file:
        tee = StderrTee(file.fileno())
        run(tee, f"import random, sys; sys.stderr.buffer.write(random.Random(1).randbytes({MEGABYTES}))")
        assert path.read_bytes() == random.Random(1).randbytes(MEGABYTES)


def test_a_target_that_does_not_block_gets_everything_too(target: Target) -> None:
    os.set_blocking(target.fd, False)
    output = b"0123456789abcdef" * (MEGABYTES // 16)
    tee = StderrTee(target.fd)
    with start(tee, f"import sys; sys.stderr.write('0123456789abcdef' * {MEGABYTES // 16})") as process:
        assert target.read(len(output)) == output
        assert process.wait(DEADLINE_S) == 0
    assert tee.drain(DEADLINE_S)
    assert target.is_empty()


def test_a_target_that_takes_nothing_is_waited_for_until_the_deadline(pipe: Target) -> None:
    os.set_blocking(pipe.fd, False)
    tee = StderrTee(pipe.fd)
    room = fcntl.fcntl(pipe.fd, fcntl.F_GETPIPE_SZ)
    os.write(tee.child_fd, b"x" * room)
    assert tee.drain(DEADLINE_S)
    os.write(tee.child_fd, b"and this")
    assert not tee.drain(0.0)
    assert not tee.drain(0.0)
    assert pipe.read(room + 8) == b"x" * room + b"and this"
    assert tee.drain(DEADLINE_S)
    tee.close_child_fd()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_program_goes_on_when_the_target_is_broken(*, is_terminal: bool) -> None:
    target = Target(terminal=is_terminal)
    tee = StderrTee(target.fd)
    target.stop_reading()
    run(tee, f"import sys; sys.stderr.write('x' * {MEGABYTES} + '\\nthe end\\n')")
    assert tee.last_lines()[-1] == "the end"
    target.close()


def test_nothing_is_written_to_a_file_that_has_the_number_of_our_closed_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)
    tee = StderrTee()
    run(tee, "import sys; print('lost', file=sys.stderr)")
    assert tee.last_lines() == ("lost",)
    assert capfd.readouterr().err == ""


def test_a_process_that_is_left_does_not_delay_draining_and_is_still_heard(target: Target, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    tee = StderrTee(target.fd)
    left = "import sys; open(sys.argv[1]).readline(); print('later', file=sys.stderr)"
    source = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.DEVNULL)\n"
        "print('now', file=sys.stderr)"
    )
    run(tee, source, left, str(tmp_path / "gate"))
    assert tee.last_lines() == ("now",)
    assert target.read(4) == b"now\n"
    gate.open()
    assert target.read(6) == b"later\n"


def test_a_process_that_writes_without_a_pause_does_not_delay_draining(pipe: Target) -> None:
    os.set_blocking(pipe.fd, False)
    room = fcntl.fcntl(pipe.fd, fcntl.F_GETPIPE_SZ)
    tee = StderrTee(pipe.fd)
    os.write(tee.child_fd, b"x" * room)
    assert tee.drain(DEADLINE_S)
    # From here on the target is full, and the channel is filled again before the target takes more.
    os.write(tee.child_fd, b"x" * room)
    drained: list[bool] = []
    drainer = threading.Thread(target=lambda: drained.append(tee.drain(DEADLINE_S)))
    drainer.start()
    while drainer.is_alive():
        os.write(tee.child_fd, b"x" * room)
        pipe.read(room)
    assert drained == [True]
    tee.close_child_fd()
    pipe.read(2 * room)
    assert tee.drain(DEADLINE_S)
