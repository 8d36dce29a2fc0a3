"""Reading what a process wrote to standard error before it ended: whose lines they are, and which one says why. Pure.

One stream may hold the lines of several processes: torchrun passes on those of its workers, and PyTorch marks them with
``[rank5]:``. Each rank's lines are read by themselves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision.prefixes import clean_line, is_chatter, rank_of, speaker_and_words
from laggard.resilience.decision.signatures import (
    RAISED,
    Signature,
    how_much,
    is_warning,
    signature_of,
    signature_of_error,
)
from laggard.resilience.decision.traceback_styles import BEGIN, FRAME, in_pythons_style, names_error

# Lines before the last traceback that may belong to it: libraries log what happened before they raise.
EPISODE_LINES = 50
MAX_QUOTE = 240
MAX_FRAMES = 3
# Other output between two lines of a traceback, and lines of an error's message.
MAX_BETWEEN = 20
# After what was left without an end of line: a progress bar, or a print(end="").
_LATE_BEGIN = re.compile(rf"(\[rank\d+\]:)? ?{re.escape(BEGIN)}$")
_NOT_THE_USERS = re.compile(r"site-packages|dist-packages|/lib/python3|^<frozen ")
_RAY_ADDRESS = re.compile(r"\bip(?: address)?[=:] ?([\d.]+\d)")
_OF_TORCHRUN = re.compile(r"^(torch\.distributed\.elastic\.\S*\.)?ChildFailedError")
_LOGGED_BY_TORCHRUN = re.compile(
    r"\b[EWI]\d{4} .*torch/distributed/(elastic|run)|(WARNING|INFO|ERROR):torch\.distributed\."
)
_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\):")
_FIELD = re.compile(r"^\s*(host(?= {6}:)|rank(?= {6}:)|exitcode(?=  :)|error_file(?=:)|traceback(?= :)) *: (.*)")
_INDENT = "  "
# Between an error and the next one that it led to, or that it was raised with in a group.
_LED_TO = re.compile(r"above exception")
_IN_A_GROUP = re.compile(r"^\s*\+-{3,} \d+ -{3,}$")
# Above the traceback of an error that did not end the process, or came as it ended.
_ON_THE_WAY = re.compile(r"^(Error in atexit|Exception ignored|Error in sys\.excepthook|--- Logging error)")
# NCCL and Rust say why in the next line.
_SAID_BELOW = re.compile(r"Last error:$|thread '.*' panicked at \S+:$")
_LOOKS_LIKE_ERROR = re.compile(
    r"^\W*(\w+: )?(error|fatal|failed|cannot|can't|could not|unable)\b|\b(error|fatal|failed|exception): (?!\W*\d)",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Traceback:
    """A traceback of Python's."""

    begin: int  # the place of its first line
    frames: tuple[str, ...]  # innermost last: `file.py:function` of each frame in the user's own files
    error: str  # the line that names the exception
    message: tuple[str, ...] = ()  # that line and those that belong to it


@dataclass(frozen=True, slots=True)
class RootCause:
    """The rank that torchrun found to be the first to fail on its node."""

    rank: int
    exit_code: int
    pid: int


@dataclass(frozen=True, slots=True)
class Complaint:
    """What one rank had to say at its end."""

    rank: int | None  # its rank; None if unknown
    quote: str  # the line that says why; empty if none does
    signature: Signature | None  # the row of the table that the line matches; None if it matches none
    # Where it happened, by the user's innermost functions, with the type of the error; empty if unknown
    place: str = ""
    address: str | None = None  # address of the node that the line is about, if it names one
    last_line: str = ""  # the last line that was written, whatever it says; empty if there is none
    went_on: bool = False  # whether more was written after the line that says why

    @property
    def is_cascade(self) -> bool:
        """Whether it only says that another process has ended."""
        return self.signature is not None and self.signature.cascade


def root_cause_of(lines: Sequence[str]) -> RootCause | None:
    """Return what torchrun's closing summary says, if there is one."""
    begins = [at for at, line in enumerate(lines) if _ROOT_CAUSE.match(line)]
    if not begins:
        return None
    below = reversed(lines[begins[-1] :])  # of each field the first counts: a traceback and other output may follow
    fields = {match[1]: match[2] for line in below if (match := _FIELD.match(line))}
    rank, ended = (
        re.match(r"\d+", fields.get("rank", "")),
        re.match(r"(-?\d+) \(pid: (\d+)\)", fields.get("exitcode", "")),
    )
    return RootCause(int(rank[0]), int(ended[1]), int(ended[2])) if rank and ended else None


def complaints_of(lines: Sequence[str]) -> list[Complaint]:
    """Return what each rank had to say, those that say why first; empty if nothing was written."""
    streams: dict[str, list[str]] = {}
    of_torchrun = []
    for line in lines:
        if _LOGGED_BY_TORCHRUN.search(line):
            of_torchrun.append(clean_line(line))
            continue
        for speaker, words in _one_per_line(*speaker_and_words(line)):
            if not _FIELD.match(words):
                streams.setdefault(speaker, []).append(words)
    by_rank = [(rank_of(speaker), stream) for speaker, stream in streams.items()]
    ranks = {rank for rank, _ in by_rank}
    by_rank += [item for item in _told_in_summary(lines).items() if item[0] not in ranks]  # into a file of its own
    found = [each for rank, stream in by_rank if (each := _complaint(rank, stream))]
    if not any(each.quote for each in found) and (only := _complaint(None, of_torchrun)):
        found.insert(0, only)
    return sorted(found, key=_weight)


def _one_per_line(speaker: str, words: str) -> Iterator[tuple[str, str]]:
    """Begin a new line with each traceback; torchrun's summary begins one in a field."""
    late = _LATE_BEGIN.search(words)
    if late is None or not late.start() or _FIELD.match(words):
        yield speaker, words
        return
    yield speaker, words[: late.start()]
    yield late[1] or speaker, BEGIN


def _weight(complaint: Complaint) -> int:
    if complaint.is_cascade:
        return 4
    says = complaint.signature.says if complaint.signature else ""
    if says in ("why", "type") or complaint.place:
        return 0 if says == "why" else 1
    return 3 if complaint.quote else 5  # whatever else was written, such as a warning, says less than a cascade


def _without_torchruns_own(lines: Sequence[str]) -> Sequence[str]:
    """Leave out torchrun's own traceback and summary, which say only that a worker failed."""
    ends = [at for at, line in enumerate(lines) if _OF_TORCHRUN.match(line)]
    if not ends:
        return lines
    begins = [at for at, line in enumerate(lines[: ends[-1]]) if line.startswith(BEGIN)]
    return lines[: begins[-1]] if begins else lines[: ends[-1]]


def _told_in_summary(lines: Sequence[str]) -> dict[int | None, list[str]]:
    """Return what torchrun's summary tells of its ranks: what ``@record`` wrote to their error files, or the signal."""
    found: dict[int | None, list[str]] = {}
    rank: int | None = None
    told: list[str] | None = None  # the traceback that is being read
    for line in map(clean_line, lines):
        if match := _FIELD.match(line):
            told = None
            if match[1] == "rank" and (number := re.match(r"\d+", match[2])):
                rank = int(number[0])
            elif (
                match[1] == "traceback" and rank is not None and (match[2].startswith(BEGIN) or signature_of(match[2]))
            ):
                told = found[rank] = [match[2]]
        elif told is not None and line.startswith(_INDENT):
            told.append(line.removeprefix(_INDENT))
        else:
            told = None
    return found


def tracebacks_in(lines: Sequence[str]) -> list[Traceback]:
    """Return the tracebacks among clean lines that may say why a process ended."""
    found = []
    for begin in (at for at, line in enumerate(lines) if line.startswith(BEGIN)):
        end = _end_of_traceback(lines, begin)
        frames = [
            f"{frame[1].rpartition('/')[2]}:{frame[3]}"
            for line in lines[begin:end]
            if (frame := FRAME.match(line)) and not _NOT_THE_USERS.search(frame[1])
        ]
        message = tuple(itertools.takewhile(_goes_on, lines[end : end + MAX_BETWEEN]))
        found.append(Traceback(begin, tuple(frames), lines[end] if end < len(lines) else "", message))
    final = [each for each in found if not (each.begin and _ON_THE_WAY.match(lines[each.begin - 1]))]
    return final or found


def _end_of_traceback(lines: Sequence[str], begin: int) -> int:
    """Return the place of the line that names the error: the first that is not indented, if no frames follow it."""
    for at in range(begin + 1, len(lines)):
        line = lines[at]
        if line.startswith(BEGIN):
            return at
        if line.startswith((" ", "\t")) or not line:
            continue
        behind = list(
            itertools.takewhile(lambda each: not each.startswith(BEGIN), lines[at + 1 : at + 1 + MAX_BETWEEN])
        )
        if names_error(line) or not (any(map(FRAME.match, behind)) or any(map(names_error, behind[:2]))):
            return at
    return len(lines)


def _goes_on(line: str) -> bool:
    return (
        bool(line.strip()) and not line.startswith(BEGIN) and not _LED_TO.search(line) and not _IN_A_GROUP.match(line)
    )


def _complaint(rank: int | None, lines: Sequence[str]) -> Complaint | None:
    whole = _without_torchruns_own(list(in_pythons_style(lines)))
    written = [line for line in whole if line.strip()]
    if not written:
        return None
    reading = _reading(whole)
    begin = max(0, reading.traceback.begin - 1) if reading.traceback else len(whole)
    addresses = (match[1] for line in whole[begin:] if (match := _RAY_ADDRESS.search(line)))
    last = _without_code_of_warnings(written)[-1]
    return Complaint(
        rank,
        _shortened(reading.quote),
        reading.signature,
        _place(reading.traceback),
        next(addresses, None),
        last_line=_shortened(last),
        went_on=written[-1] != (reading.traceback.error if reading.traceback else reading.quote),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """The line that says most, of a part of the output."""

    quote: str
    signature: Signature | None
    traceback: Traceback | None = None

    @property
    def is_settled(self) -> bool:
        """Whether what was written before or after it does not matter."""
        return self.signature is None or self.signature.says in ("why", "type")

    @property
    def is_cascade(self) -> bool:
        """Whether it only says that another process has ended."""
        return self.signature is not None and self.signature.says == "peer"


def _reading(lines: Sequence[str]) -> _Reading:
    """Return the line that says why the process ended."""
    chains = _chains(lines, tracebacks_in(lines))
    if not chains:
        return _of_log(lines[-EPISODE_LINES:])
    begin = chains[-1][0].begin
    reading = _of_chain(lines, chains[-1])
    # Of peers' errors, and of launchers' that tell how a process ended, the ones before may say more.
    for chain in reversed(chains[:-1]):
        if reading.is_settled or begin - chain[-1].begin > EPISODE_LINES:
            break
        begin = chain[0].begin
        reading = _of_chain(lines, chain)
    if reading.is_settled:
        return reading
    before = _best(list(_without_code(lines[max(0, begin - EPISODE_LINES) : begin])))
    behind = _best(list(_without_code(lines[begin:])))
    earlier = before and before.is_cascade and reading.is_cascade and before.signature != reading.signature
    if before and (before.is_settled or earlier):
        return replace(before, traceback=reading.traceback)
    if behind and behind.signature and behind.signature.says == "why":
        return replace(behind, traceback=reading.traceback)
    return reading


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


def _of_chain(lines: Sequence[str], chain: Sequence[Traceback]) -> _Reading:
    """Return the first error with a reason; else a peer's, if it was the first; else what was raised in the end."""
    readings = [_of_message(each) for each in chain]
    for each in readings:
        if each.signature is not None and each.signature.says == "why":
            return each
    if readings[0].is_cascade:
        return readings[0]
    if any(_IN_A_GROUP.match(line) for line in lines[chain[0].begin : chain[-1].begin]):
        return readings[0]
    return next((each for each in reversed(readings) if each.is_settled), readings[0])


def _of_message(traceback: Traceback) -> _Reading:
    """Return the line of an error's message that says most."""
    best = _best(traceback.message) or _Reading(traceback.error, signature_of_error(traceback.error))
    return replace(best, traceback=traceback)


def _of_log(lines: Sequence[str]) -> _Reading:
    """Return the line that says most where there is no traceback, or around one; empty if none says anything."""
    lines = [line for line in _without_code(lines) if line.strip()]
    if best := _best(lines):
        return best
    serious = [line for line in lines if not is_warning(line) and not is_chatter(line)]
    named = next(filter(names_error, serious), "")
    if named:
        return _Reading(named, RAISED)
    return _Reading(next(filter(_LOOKS_LIKE_ERROR.search, serious), ""), None)


def _best(lines: Sequence[str]) -> _Reading | None:
    """Return the first of the lines that say most."""
    known = [(line, signature) for line in lines if (signature := signature_of(line))]
    if not known:
        return None
    quote, signature = min(known, key=lambda each: how_much(each[1]))
    below = next((line for above, line in itertools.pairwise(lines) if line and _SAID_BELOW.match(above)), "")
    if not below or signature.says == "why":
        return _Reading(quote, signature)
    return _Reading(below, signature_of(below) or signature)


def _without_code_of_warnings(written: Sequence[str]) -> Sequence[str]:
    """Leave out the line of code that Python prints below a warning."""
    before = ("", *written)
    return [line for line, above in zip(written, before, strict=False) if not (line[:1] == " " and is_warning(above))]


def _without_code(lines: Sequence[str]) -> Iterator[str]:
    """Leave out the frames of tracebacks with their lines of code, which may quote anything."""
    inside = False
    for line in lines:
        code = inside and line.startswith((" ", "\t"))
        inside = code or line.startswith(BEGIN)
        if not code:
            yield line


def _place(traceback: Traceback | None) -> str:
    if traceback is None:
        return ""
    kind = traceback.error.partition(":")[0]
    return " < ".join([kind, *reversed(traceback.frames[-MAX_FRAMES:])])


def _shortened(quote: str) -> str:
    quote = quote.strip()
    return quote if len(quote) <= MAX_QUOTE else f"{quote[: MAX_QUOTE - 2]} …"


def without_numbers(text: str) -> str:
    """Return a text with its numbers and addresses replaced, so that two runs can be compared."""
    return _NUMBERS.sub("#", text)
