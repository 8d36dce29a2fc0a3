"""Reading what a process wrote to standard error before it ended: whose lines they are, and which one says why. Pure.

One stream may hold the lines of several processes: torchrun passes on those of its workers, and PyTorch marks them with
``[rank5]:``. Each rank's lines are read by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from laggard.resilience.decision.signatures import Signature, clean_line, is_warning, signature_of
from laggard.resilience.decision.traceback_styles import BEGIN, in_pythons_style

# Lines before the last traceback that may belong to it: libraries log what happened before they raise.
EPISODE_LINES = 50
MAX_QUOTE = 240
MAX_FRAMES = 3
_RANK = re.compile(r"(?:\x1b\[[0-9;]*m)*\[rank(\d+)\]:")
# After what was left without an end of line: a progress bar, or a print(end="").
_LATE_BEGIN = re.compile(rf"(\[rank\d+\]: ?)?{re.escape(BEGIN)}$")
_FRAME = re.compile(r'\s+File "(.+)", line (\d+), in (.+)')
_NOT_THE_USERS = re.compile(r"site-packages|dist-packages|/lib/python3|^<frozen ")
_RAY_TASK = re.compile(r"^(?:ray\.exceptions\.)?\w+(?:\(\w+\))?: .*ray::")
_RAY_ADDRESS = re.compile(r"\bip(?: address)?[=:] ?([\d.]+\d)")
_OF_TORCHRUN = re.compile(r"^(torch\.distributed\.elastic\.\S*\.)?ChildFailedError")
# What a launcher such as accelerate's raises below the traceback of the program that it has run.
_OF_LAUNCHER = re.compile(r"^(subprocess\.)?CalledProcessError: Command ")
_LOGGED_BY_TORCHRUN = re.compile(r"^[EWI]\d{4} .*torch/distributed/(elastic|run)")
_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\):")
_FIELD = re.compile(r"^\s+(host|rank|exitcode|error_file|traceback)\s*: (.*)")
_INDENT = "  "
# Between an error and the next one that it led to, or that it was raised with in a group.
_GOES_ON = re.compile(r"above exception|^\s*\+-{3,} \d+ -{3,}$")
# What a crash says before it lists threads, frames and loaded modules: C++ why, then C++ or Python that.
_CRASHES = (re.compile(r"^\s*what\(\): "), re.compile(r"^(Fatal Python error: |terminate called )"))
# What is said of data that ends too early, which is no word about a peer unless it came from a socket.
_CUT_SHORT = re.compile(r"^(\w+\.)*(struct\.error|EOFError|UnpicklingError|JSONDecodeError)\b")
_READS_SOCKET = re.compile(r"\.recv|\b(sock|socket|conn|connection)\b|makefile|rfile")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Traceback:
    """A traceback of Python's."""

    frames: tuple[str, ...]  # innermost last: `file.py:function` of each frame in the user's own files
    error: str  # the line that names the exception


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
    lines = list(_one_per_line(lines))
    streams: dict[int | None, list[str]] = {}
    for line in _without_torchruns_own(lines):
        match = _RANK.match(line)
        streams.setdefault(int(match[1]) if match else None, []).append(clean_line(line))
    for rank, told in _tracebacks_in_summary(lines).items():
        streams.setdefault(rank, told)  # it wrote to a file of its own
    found = [_complaint(rank, stream) for rank, stream in streams.items()]
    return sorted((each for each in found if each is not None), key=_weight)


def _one_per_line(lines: Sequence[str]) -> Iterator[str]:
    """Begin a new line with each traceback; torchrun's summary begins one in a field."""
    for line in lines:
        late = _LATE_BEGIN.search(line)
        if late is None or not late.start() or _FIELD.match(clean_line(line)):
            yield line
            continue
        rank = _RANK.match(line)
        yield line[: late.start()]
        yield late[0] if late[1] or not rank else rank[0] + late[0]


def _weight(complaint: Complaint) -> int:
    if complaint.is_cascade:
        return 3
    if complaint.signature is not None:
        return 0
    if complaint.place:
        return 1
    return 2 if complaint.quote else 4  # whatever else was written, such as a warning, says less than a cascade


def _without_torchruns_own(lines: Sequence[str]) -> Sequence[str]:
    """Leave out torchrun's own log, traceback and summary, which say only that a worker failed."""
    lines = [line for line in lines if not _LOGGED_BY_TORCHRUN.match(line)]
    ends = [at for at, line in enumerate(lines) if _OF_TORCHRUN.match(line)]
    if not ends:
        return lines
    begins = [at for at, line in enumerate(lines[: ends[-1]]) if line.startswith(BEGIN)]
    return lines[: begins[-1]] if begins else lines[: ends[-1]]


def _tracebacks_in_summary(lines: Sequence[str]) -> dict[int, list[str]]:
    """Return what torchrun's summary quotes from the error files of its ranks, as ``@record`` writes them."""
    found: dict[int, list[str]] = {}
    rank: int | None = None
    told: list[str] | None = None  # the traceback that is being read
    for line in map(clean_line, lines):
        if match := _FIELD.match(line):
            told = None
            if match[1] == "rank" and (number := re.match(r"\d+", match[2])):
                rank = int(number[0])
            elif match[1] == "traceback" and match[2].startswith(BEGIN) and rank is not None:
                told = found[rank] = [match[2]]
        elif told is not None and line.startswith(_INDENT):
            told.append(line.removeprefix(_INDENT))
        else:
            told = None
    return found


def tracebacks_in(lines: Sequence[str]) -> list[tuple[int, Traceback]]:
    """Return the tracebacks among clean lines, each with the place of its first line."""
    found = []
    for begin in (at for at, line in enumerate(lines) if line.startswith(BEGIN)):
        frames: list[str] = []
        error = ""
        for line in lines[begin + 1 :]:
            if frame := _FRAME.match(line):
                frames += [] if _NOT_THE_USERS.search(frame[1]) else [f"{frame[1].rpartition('/')[2]}:{frame[3]}"]
            elif not line.startswith((" ", "\t")):
                error = line
                if not _RAY_TASK.match(line):  # below that line is the traceback of Ray's worker
                    break
        found.append((begin, Traceback(tuple(frames), error)))
    return found


def _complaint(rank: int | None, lines: Sequence[str]) -> Complaint | None:
    written = [line for line in in_pythons_style(lines) if line.strip()]
    if not written:
        return None
    tracebacks = tracebacks_in(written)
    if _is_launchers(tracebacks):
        written = written[: tracebacks.pop()[0]]
    chain = _last_chain(written, tracebacks)
    begin = chain[0][0] if chain else len(written)
    traceback = chain[0][1] if chain else None
    quote, signature = _line_that_says_why(written[begin:], written[max(0, begin - EPISODE_LINES) : begin])
    if lost := _lost_peer(written, chain, signature):
        quote, signature = lost
    elif signature is None:
        quote = traceback.error if traceback else _crash_in(written[-EPISODE_LINES:])
    addresses = (match[1] for line in written[begin:] if (match := _RAY_ADDRESS.search(line)))
    return Complaint(
        rank,
        _shortened(quote),
        signature,
        _place(traceback),
        next(addresses, None),
        last_line=_shortened(_without_code_of_warnings(written)[-1]),
        went_on=written[-1] != (tracebacks[-1][1].error if tracebacks else quote),
    )


def _lost_peer(
    written: Sequence[str], chain: Sequence[tuple[int, Traceback]], signature: Signature | None
) -> tuple[str, Signature] | None:
    """Return the error of a chain that says that a peer was lost, unless the chain has a graver cause."""
    if signature is not None and signature.kind != "program":
        return None
    found = [(each.error, signature_of(each.error)) for _, each in chain]
    if chain and _CUT_SHORT.match(chain[0][1].error) and _from_socket(written[chain[0][0] :]):
        found.append((chain[0][1].error, signature_of("ConnectionError")))
    return next(((error, each) for error, each in found if each is not None and each.cascade), None)


def _from_socket(lines: Sequence[str]) -> bool:
    """Return whether the code of the traceback with which some lines begin reads from a socket."""
    return any(map(_READS_SOCKET.search, takewhile(lambda line: line.startswith((" ", "\t")), lines[1:])))


def _is_launchers(tracebacks: Sequence[tuple[int, Traceback]]) -> bool:
    """Return whether the last traceback is that of a launcher, and the one before it that of what it has run."""
    if len(tracebacks) < 2 or not _OF_LAUNCHER.match(tracebacks[-1][1].error):
        return False
    (before, _), (last, _) = tracebacks[-2:]
    return last - before <= EPISODE_LINES


def _crash_in(lines: Sequence[str]) -> str:
    """Return the line that says of what a process without a traceback has crashed; empty if it has not."""
    return next((line for pattern in _CRASHES for line in lines if pattern.match(line)), "")


def _without_code_of_warnings(lines: Sequence[str]) -> Sequence[str]:
    """Leave out the line of code that Python prints below a warning."""
    before = ("", *lines)
    return [line for line, above in zip(lines, before, strict=False) if not (line[:1] == " " and is_warning(above))]


def _line_that_says_why(episode: Sequence[str], before: Sequence[str]) -> tuple[str, Signature | None]:
    """Return the first line that is not a cascade, of the last traceback on or else of what precedes it."""
    cascade: tuple[str, Signature | None] = ("", None)
    for lines in (episode, before):
        for line in _without_code(lines):
            signature = signature_of(line)
            if signature is not None and not signature.cascade:
                return line, signature
            if signature is not None and cascade[1] is None:
                cascade = line, signature
        if cascade[1] is None and any(line.startswith(BEGIN) for line in lines):
            return cascade  # an error of a type that the table does not know
    return cascade


def _without_code(lines: Sequence[str]) -> Iterator[str]:
    """Leave out the frames of tracebacks with their lines of code, which may quote anything."""
    inside = False
    for line in lines:
        code = inside and line.startswith((" ", "\t"))
        inside = code or line.startswith(BEGIN) or bool(_RAY_TASK.match(line))
        if not code:
            yield line


def _last_chain(lines: Sequence[str], tracebacks: Sequence[tuple[int, Traceback]]) -> Sequence[tuple[int, Traceback]]:
    """Return the last traceback with those that led to it, the first of them first."""
    chain = list(tracebacks[-1:])
    for begin, traceback in reversed(tracebacks[:-1]):
        between = lines[begin : chain[0][0]]
        if not any(map(_GOES_ON.search, between)):
            break
        chain.insert(0, (begin, traceback))
    return chain


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
