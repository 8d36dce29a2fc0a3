"""Record a command on a terminal, as a picture that moves: ``python -m benchmarks.recording FILE.svg COMMAND...``."""

from __future__ import annotations

import fcntl
import getpass
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import time
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

__all__ = ["main"]

_COLUMNS, _ROWS = 100, 30
_CELL_X, _CELL_Y, _MARGIN = 8.0, 18, 12
_SPEED = 2.5  # how much faster than it was
_SHORTEST_S, _LONGEST_S, _LAST_S = 0.4, 3.0, 20.0  # of a frame, as recorded
_COLORS = {"black": "#6e7681", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "blue": "#79c0ff"}
_COLORS |= {"magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#f0f6fc", "default": "#c9d1d9"}

_Line = tuple[tuple[int, str, str, bool], ...]  # runs of one style: column, text, colour, bold
_Frame = tuple[_Line, ...]


def record(command: list[str]) -> list[tuple[float, _Frame]]:
    """Run a command on a terminal; return each state of its screen, and for how many seconds it stood."""
    screen = pyte.Screen(_COLUMNS, _ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m {' '.join(command)}\r\n".encode())
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    account = f"{getpass.getuser()}@{socket.gethostname()}".encode()
    frames = [(0.0, _drawn(screen))]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        since_s = time.monotonic()
        while piece := _read(ours):
            stream.feed(piece.replace(account, b"you@host").replace(bytes(Path.home()), b"/home/you"))
            now_s = time.monotonic()
            if now_s - since_s >= _SHORTEST_S:
                frames[-1] = (now_s - since_s, frames[-1][1])
                frames.append((0.0, _drawn(screen)))
                since_s = now_s
    if process.returncode:
        raise SystemExit("\n".join([*screen.display, f"it ended with exit code {process.returncode}"]))
    return [*frames[:-1], (_LAST_S, _drawn(screen))]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # what Linux says where the other end is closed
        return b""


def _drawn(screen: pyte.Screen) -> _Frame:
    lines = []
    for row in range(_ROWS):
        cells = [(column, screen.buffer[row][column]) for column in range(_COLUMNS)]
        runs = [list(run) for _, run in groupby(cells, lambda cell: (cell[1].fg, cell[1].bold))]
        texts = [(run[0][0], "".join(cell.data for _, cell in run), run[0][1]) for run in runs]
        lines.append(tuple((at, text.rstrip(), style.fg, style.bold) for at, text, style in texts if text.strip()))
    return tuple(lines)


def svg(frames: list[tuple[float, _Frame]]) -> str:
    """Draw the frames below each other, and move them past a window; where nothing moves, the last one is seen."""
    names = {line: f"l{number}" for number, line in enumerate({line: 0 for _, frame in frames for line in frame})}
    height, width = _ROWS * _CELL_Y, _COLUMNS * _CELL_X
    lengths_s = [min(length_s, _LONGEST_S) / _SPEED for length_s, _ in frames[:-1]] + [_LAST_S / _SPEED]
    starts_s = [sum(lengths_s[:number]) for number in range(len(frames))]
    steps = "".join(
        f"{100 * start_s / sum(lengths_s):.2f}%{{transform:translateY({-number * height}px)}}"
        for number, start_s in enumerate(starts_s)
    )
    uses = "".join(
        f'<use href="#{names[line]}" y="{number * height + row * _CELL_Y}"/>'
        for number, (_, frame) in enumerate(frames)
        for row, line in enumerate(frame)
        if line
    )
    lines = "".join(f'<text id="{name}" y="14">{"".join(map(_run, line))}</text>' for line, name in names.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 2 * _MARGIN} {height + 2 * _MARGIN}">'
        f"<style>text{{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}"
        f"#film{{transform:translateY({-(len(frames) - 1) * height}px)}}@keyframes play{{{steps}}}"
        "@media(prefers-reduced-motion:no-preference)"
        f"{{#film{{animation:play {sum(lengths_s):.1f}s step-end infinite}}}}</style>"
        f'<defs>{lines}</defs><rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
        f'<svg x="{_MARGIN}" y="{_MARGIN}" width="{width}" height="{height}"><g id="film">{uses}</g></svg></svg>\n'
    )


def _run(run: tuple[int, str, str, bool]) -> str:
    column, text, color, bold = run
    fill = _COLORS.get(color.removeprefix("bright"), _COLORS["default"])
    style = f'x="{column * _CELL_X}" textLength="{len(text) * _CELL_X}" fill="{fill}"' + ' font-weight="bold"' * bold
    return f"<tspan {style}>{escape(text)}</tspan>"


def main() -> None:
    """Record the command that is given after the file."""
    file, *command = sys.argv[1:]
    frames = record(command)
    Path(file).write_text(svg(frames), encoding="utf-8")


if __name__ == "__main__":
    main()
