"""Which line of what one process wrote says why it ended. Pure.

Of a traceback it is a line of the error's message. Of errors that led to each other the first with a reason counts, or
else the last, in the words of what the user's code raised from it (``raise ... from``), unless these say only how a
process ended. What was logged before and after counts if the error tells only that another process has ended, or how
this one did; and if so much follows that the process must have survived the error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.reading.prefixes import is_chatter
from laggard.resilience.reading.signatures import (
    KILLED,
    Signature,
    how_much,
    is_warning,
    signature_of,
    signature_of_error,
)

BEGIN = "Traceback (most recent call last):"
# rich draws a box (so do typer and others); loguru points at the frame that caught the error; Ray leaves out the first
# line, as does whoever cuts an output.
_BOX_BEGINS = re.compile(r"^╭─+ Traceback \(most recent call last\) ─+╮$")
_PYTHONS_FRAME = re.compile(r'\s*File ".+", line \d+, in ')
_FRAME = re.compile(r'\s*(?:> )?(?:File )?"?(\S.*?)"?(?:, line |:)\d+,? in ([^(\s]+)')
_ERROR = re.compile(
    r"(\w+\.)*\w*(Error|Exception|Exit|Interrupt|Group|Fault|Empty|Full|Timeout)(\(\w+\))?(:|$)"
    r"|(\w+\.)+\w*(error|timeout)(:|$)"
)
# Lines before the last traceback that may belong to it: libraries log what happened before they raise.
EPISODE_LINES = 50
# Other output between two lines of a traceback, lines of an error's message, and what an exit may still print.
MAX_BETWEEN = 20
_NOT_THE_USERS = re.compile(r"site-packages|dist-packages|/lib/python3|^<frozen ")
# Between an error and the next one that it led to, or that it was raised with in a group.
_LED_TO = re.compile(r"above exception")
_RAISED_FROM = re.compile(r"^The above exception was the direct cause")
_IN_A_GROUP = re.compile(r"^\s*\+-(\+-)?-{2,} \d+ -{3,}$")
_IS_GROUP = re.compile(r" \(\d+ sub-exceptions?\)$")
_END_OF_GROUP = re.compile(r"^\s*\+-{30,}$")
# Above the traceback of an error that did not end the process, or came as it ended.
_ON_THE_WAY = re.compile(r"^(Error in atexit|Exception ignored|Error in sys\.excepthook|--- Logging error)")
_AT_EXIT = re.compile(r", in (_run_finalizers|_exit_function|_run_exitfuncs|__del__)$")
# What is said of data that ends too early, which is no word about a peer unless it came from a socket.
_CUT_SHORT = re.compile(r"^(\w+\.)*(struct\.error|EOFError|UnpicklingError|JSONDecodeError)\b")
_READS_SOCKET = re.compile(r"\.recv|\b(sock|socket|conn|connection)\b|makefile|rfile")
# NCCL and Rust say why in the next line.
_SAID_BELOW = re.compile(r"Last error:$|thread '.*'.* panicked at \S+:$")
# A frame of C++, the JVM, Go, Rust or Julia.
_FRAME_OF_OTHERS = re.compile(r"^(frame #\d+: |#\d+ |\s+at |\s*@ +0x|\s+\d+: |\s+\[\d+\] |\t/)")
_SEQUENCE_NUMBER = re.compile(r"collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}),")
_LOOKS_LIKE_ERROR = re.compile(
    r"^\W*(\w+: )?(error|fatal|failed|cannot|can't|could not|unable)\b|\b(error|fatal|failed|exception): (?!\W*\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Traceback:
    """A traceback of Python's."""

    begin: int  # the place of its first line
    end: int  # the place of what follows the line that names the exception
    frames: tuple[str, ...]  # innermost last: `file.py:function` of each frame in the user's own files
    message: tuple[str, ...]  # the line that names the exception and those that belong to it
    is_users: bool  # whether it was raised in one of these files

    @property
    def error(self) -> str:
        """The line that names the exception; empty if it is cut off."""
        return self.message[0] if self.message else ""


@dataclass(frozen=True, slots=True)
class Reading:
    """The line that says most, of a part of the output."""

    quote: str  # empty if none says anything
    signature: Signature | None  # the row of the table that it matches; None if it matches none
    traceback: Traceback | None = None  # the traceback that it belongs to, or was logged with

    @property
    def cause(self) -> str:
        """What its row of the table is about; empty if it has none."""
        return self.signature.name if self.signature else ""

    def says(self, *what: str) -> bool:
        """Return whether it says so much."""
        return self.signature is not None and self.signature.says in what

    @property
    def is_settled(self) -> bool:
        """Whether what was written before or after it does not matter."""
        return self.says("why", "type") or (self.signature is None and self.quote != "")


def names_error(line: str) -> bool:
    """Return whether a line begins with the name of an exception, as the last one of a traceback does."""
    return _ERROR.match(line) is not None


def in_pythons_style(lines: Sequence[str]) -> Iterator[str]:
    """Return clean lines with their tracebacks as Python would have written them."""
    is_open = False
    for line in lines:
        if line.startswith(("│", "╰", "> File ")):  # in a box, or pointed at: indented, it is a frame or its code
            yield f"  {line.strip('│ ')}"
        elif _BOX_BEGINS.match(line):
            yield BEGIN
        else:
            if not is_open and _PYTHONS_FRAME.match(line):
                yield BEGIN
                is_open = True
            # Other output may stand between frames: only the name of an error ends them.
            is_open = line.startswith(BEGIN) or (is_open and not names_error(line))
            yield line


def reading_of(lines: Sequence[str]) -> Reading:
    """Return the line that says why, of clean lines with tracebacks in Python's style."""
    chains = _chains(lines, _tracebacks_in(lines))
    if not chains:
        return _of_log(lines)
    later = list(_told(lines[chains[-1][-1].end :]))
    if len(later) > MAX_BETWEEN and (last := _best(later)) and (last.says("why") or last.cause == KILLED):
        return last
    begin = chains[-1][0].begin
    reading = _of_chain(lines, chains[-1])
    # Of peers' errors, and of launchers' that tell how a process ended, the ones before may say more.
    for chain in reversed(chains[:-1]):
        if reading.is_settled or begin - chain[-1].begin > EPISODE_LINES:
            break
        begin = chain[0].begin
        reading = _of_chain(lines, chain)
    return reading if reading.is_settled else _beside(lines, begin, reading)


def _beside(lines: Sequence[str], begin: int, reading: Reading) -> Reading:
    """Return what was logged before a traceback or after it began, if it says more."""
    if not reading.quote:
        return replace(_of_log(lines[:begin]), traceback=reading.traceback)
    before = _best(list(_told(lines[:begin]))[-EPISODE_LINES:])
    after = _best(list(_told(lines[begin:])))
    # Of another peer's end than the traceback tells of, the first word counts.
    if before and (
        before.is_settled or (before.says("peer") and reading.says("peer") and before.cause != reading.cause)
    ):
        return replace(before, traceback=reading.traceback)
    return replace(after, traceback=reading.traceback) if after and after.says("why") else reading


def _tracebacks_in(lines: Sequence[str]) -> list[Traceback]:
    """Return the tracebacks that may say why a process ended."""
    found = []
    for begin in (at for at, line in enumerate(lines) if line.startswith(BEGIN)):
        error = _place_of_error(lines, begin)
        frames = [frame for line in lines[begin:error] if (frame := _FRAME.match(line))]
        users = [frame for frame in frames if not _NOT_THE_USERS.search(frame[1])]
        names = tuple(f"{frame[1].rpartition('/')[2]}:{frame[2]}" for frame in users)
        message = tuple(itertools.takewhile(_goes_on, lines[error : error + MAX_BETWEEN]))
        found.append(Traceback(begin, error + 1, names, message, is_users=bool(users) and users[-1] is frames[-1]))
    return [each for each in found if not _is_on_the_way(lines, each)] or found


def _is_on_the_way(lines: Sequence[str], traceback: Traceback) -> bool:
    above = lines[traceback.begin - 1] if traceback.begin else ""
    return bool(_ON_THE_WAY.match(above)) or any(map(_AT_EXIT.search, lines[traceback.begin : traceback.end]))


def _place_of_error(lines: Sequence[str], begin: int) -> int:
    """Return the place of the line that names the error: the first that is not indented, if no frames follow it."""
    for at in range(begin + 1, len(lines)):
        line = lines[at]
        if line.startswith(BEGIN):
            return at
        if line.startswith((" ", "\t")) or not line:
            continue
        rest = list(itertools.takewhile(lambda each: not each.startswith(BEGIN), lines[at + 1 : at + 1 + MAX_BETWEEN]))
        if names_error(line) or not (any(map(_FRAME.match, rest)) or any(map(names_error, rest[:2]))):
            return at
    return len(lines)


def _goes_on(line: str) -> bool:
    ends = not line.strip() or line.startswith(BEGIN) or _LED_TO.search(line)
    return not ends


def _chains(lines: Sequence[str], tracebacks: Sequence[Traceback]) -> list[list[Traceback]]:
    """Return the tracebacks, each with those that it led to or that were raised in a group with it."""
    chains: list[list[Traceback]] = []
    for traceback in tracebacks:
        between = lines[chains[-1][-1].begin : traceback.begin] if chains else ()
        if any(_LED_TO.search(line) or _IN_A_GROUP.match(line) for line in between):
            chains[-1].append(traceback)
        else:
            chains.append([traceback])
    return chains


def _of_chain(lines: Sequence[str], chain: Sequence[Traceback]) -> Reading:
    """Return what the error that counts is about, in the words of what was raised from it."""
    readings = [_of_message(lines, each) for each in chain]
    reading = _that_counts(lines, chain, readings)
    raised = _raised_from(lines, chain, readings.index(reading))
    words = reading if raised is None else _first_of_group(readings[raised:])
    return reading if words.says("how", "peer") else replace(reading, quote=words.quote)


def _raised_from(lines: Sequence[str], chain: Sequence[Traceback], at: int) -> int | None:
    """Return the place in the chain of what was raised last from what an error led to, or from the group it is in.

    Libraries often say only that there was an error; who raises one in a file of his own says what it means.
    """
    raised, is_anothers = None, False  # whether what comes next led to another error of its group
    for number in range(at + 1, len(chain)):
        between = lines[chain[number - 1].end : chain[number].begin]
        if any(map(_END_OF_GROUP.match, between)):
            is_anothers = False
        elif any(map(_IN_A_GROUP.match, between)):
            is_anothers = True
        if any(map(_RAISED_FROM.match, between)) and not is_anothers and chain[number].is_users:
            raised = number
    return raised


def _first_of_group(readings: Sequence[Reading]) -> Reading:
    """Return the first of them, or the first error of the group that it is."""
    return next((each for each in readings if not _IS_GROUP.search(each.quote)), readings[0])


def _that_counts(lines: Sequence[str], chain: Sequence[Traceback], readings: Sequence[Reading]) -> Reading:
    """Return the first error with a reason; else a peer's, if that led to the rest; else what was raised in the end."""
    if why := next((each for each in readings if each.says("why")), None):
        return why
    between = lines[chain[0].begin : chain[-1].begin]
    if readings[0].says("peer") or any(map(_IN_A_GROUP.match, between)):
        return _first_of_group(readings)
    if readings[-1].says("peer") and any(map(_RAISED_FROM.match, between)):
        return readings[-1]
    return next((each for each in reversed(readings) if each.is_settled), readings[0])


def _of_message(lines: Sequence[str], traceback: Traceback) -> Reading:
    """Return the line of an error's message that says most."""
    if _CUT_SHORT.match(traceback.error) and any(map(_READS_SOCKET.search, lines[traceback.begin : traceback.end - 1])):
        return Reading(traceback.error, signature_of("ConnectionError"), traceback)
    best = _best(traceback.message) or Reading(traceback.error, signature_of_error(traceback.error))
    return replace(best, traceback=traceback)


def _of_log(lines: Sequence[str]) -> Reading:
    """Return the line that says most where there is no traceback."""
    told = list(_told(lines))[-EPISODE_LINES:]
    if best := _best(told):
        return best
    serious = [line for line in told if not is_warning(line) and not is_chatter(line)]
    if named := next(filter(names_error, serious), ""):
        return Reading(named, signature_of_error(named))
    return Reading(next(filter(_LOOKS_LIKE_ERROR.search, serious), ""), None)


def _best(lines: Sequence[str]) -> Reading | None:
    """Return the first of the lines that say most; None if the table knows none of them."""
    known = [(line, signature) for line in lines if (signature := signature_of(line))]
    if not known:
        return None
    quote, signature = min(known, key=lambda each: (how_much(each[1]), sequence_number(each[0])))
    below = next((line for above, line in itertools.pairwise(lines) if line and _SAID_BELOW.match(above)), "")
    if not below or signature.says == "why":
        return Reading(quote, signature)
    return Reading(below, signature_of(below) or signature)


def sequence_number(line: str) -> int:
    """Return the number of the collective that a line tells of; of those that wait, the lowest is behind."""
    match = _SEQUENCE_NUMBER.search(line)
    return int(match[1]) if match else 0


def _told(lines: Sequence[str]) -> Iterator[str]:
    """Leave out frames and lines of code, which may quote anything."""
    inside = False
    for line in lines:
        code = inside and line.startswith((" ", "\t"))
        inside = code or line.startswith(BEGIN)
        if line.strip() and not code and not _FRAME_OF_OTHERS.match(line):
            yield line
