"""Reading what a process wrote to standard error before it ended: whose lines they are, and which one says why. Pure.

One stream may hold the lines of several processes: torchrun passes on those of its workers, and PyTorch marks them with
``[rank5]:``. Each rank's lines are read by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from laggard.resilience.reading.prefixes import clean_line, rank_of, speaker_and_words
from laggard.resilience.reading.reading import BEGIN, Traceback, in_pythons_style, reading_of, sequence_number
from laggard.resilience.reading.signatures import Signature, signature_of

MAX_QUOTE = 240
MAX_FRAMES = 3
# After what was left without an end of line: a progress bar, or a print(end="").
_LATE_BEGIN = re.compile(rf"(\[rank\d+\]:)? ?{re.escape(BEGIN)}$")
# What an unknown launcher puts before the first line of a traceback, it puts before the rest.
_MARKED_BEGIN = re.compile(rf"(\S{{1,40}}?(?:[:\]>]| *\|)) ?{re.escape(BEGIN)}$")
_RAY_ADDRESS = re.compile(r"\bip(?: address)?[=:] ?([\d.]+\d)")
_OF_TORCHRUN = re.compile(r"^(torch\.distributed\.elastic\.\S*\.)?ChildFailedError")
_LOGGED_BY_TORCHRUN = re.compile(
    r"\b[EWI]\d{4} .{,300}torch/distributed/(elastic|run)|(WARNING|INFO|ERROR):torch\.distributed\."
)
_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\):")
_FIELD = re.compile(r"^\s*(host(?= {6}:)|rank(?= {6}:)|exitcode(?=  :)|error_file(?=:)|traceback(?= :)) *: (.*)")
_INDENT = "  "
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


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
        return self.signature is not None and self.signature.says == "peer"

    @property
    def says_why(self) -> bool:
        """Whether it says more than how a process ended."""
        return self.signature is not None and self.signature.says != "how"


def root_cause_of(lines: Sequence[str]) -> RootCause | None:
    """Return what torchrun's closing summary says, if there is one."""
    begins = [at for at, line in enumerate(lines) if _ROOT_CAUSE.match(line)]
    if not begins:
        return None
    below = reversed(lines[begins[-1] :])  # of each field the first counts: a traceback and other output may follow
    fields = {match[1]: match[2] for line in below if (match := _FIELD.match(line))}
    rank = re.match(r"\d+", fields.get("rank", ""))
    ended = re.match(r"(-?\d+) \(pid: (\d+)\)", fields.get("exitcode", ""))
    return RootCause(int(rank[0]), int(ended[1]), int(ended[2])) if rank and ended else None


def complaints_of(lines: Sequence[str]) -> list[Complaint]:
    """Return what each rank had to say, those that say why first; empty if nothing was written."""
    streams: dict[str, list[str]] = {}
    of_torchrun = [clean_line(line) for line in lines if _LOGGED_BY_TORCHRUN.search(line)]
    parts = [speaker_and_words(line) for line in lines if not _LOGGED_BY_TORCHRUN.search(line)]
    marks = {match[1] for _, words in parts if (match := _MARKED_BEGIN.match(words))}
    for part in parts:
        for speaker, words in _one_per_line(*_without_mark(marks, *part)):
            if not _FIELD.match(words):
                streams.setdefault(speaker, []).append(words)
    by_rank = [(rank_of(speaker), stream) for speaker, stream in streams.items()]
    ranks = {rank for rank, _ in by_rank}
    by_rank += [item for item in _told_in_summary(lines).items() if item[0] not in ranks]  # into a file of its own
    found = [each for rank, stream in by_rank if (each := _complaint(rank, stream))]
    if not any(each.quote for each in found) and (only := _complaint(None, of_torchrun)):
        found.insert(0, only)
    return sorted(found, key=lambda each: (_weight(each), sequence_number(each.quote)))


def _without_mark(marks: Collection[str], speaker: str, words: str) -> tuple[str, str]:
    """Count a mark that stands before a traceback as that of who wrote the line; Python indents by even numbers."""
    mark = next(filter(words.startswith, marks), "")
    rest = words[len(mark) :]
    indent = len(rest) - len(rest.lstrip(" "))
    return speaker + mark, rest[1:] if mark and indent % 2 else rest


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
            elif match[1] == "traceback" and (match[2].startswith(BEGIN) or signature_of(match[2])):
                told = found[rank] = [match[2]]
        elif told is not None and line.startswith(_INDENT):
            told.append(line.removeprefix(_INDENT))
        else:
            told = None
    return found


def _complaint(rank: int | None, lines: Sequence[str]) -> Complaint | None:
    whole = _without_torchruns_own(list(in_pythons_style(lines)))
    written = [line for line in whole if line.strip()]
    if not written:
        return None
    reading = reading_of(whole)
    begin = max(0, reading.traceback.begin - 1) if reading.traceback else len(whole)
    while 0 < begin < len(whole) and not whole[begin].strip(" ^~"):  # Ray keeps the marks of a frame that it leaves out
        begin -= 1
    addresses = (match[1] for line in whole[begin:] if (match := _RAY_ADDRESS.search(line)))
    last = next((line for line in reversed(written) if line[0] != " "), written[-1])  # no code below a warning
    return Complaint(
        rank,
        _shortened(reading.quote),
        reading.signature,
        _place(reading.traceback),
        next(addresses, None),
        last_line=_shortened(last),
        went_on=written[-1] not in (reading.quote, *([reading.traceback.error] if reading.traceback else ())),
    )


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
