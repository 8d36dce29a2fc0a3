"""Failure outputs: how often a reader quotes the right line of what a failing job printed, and tells what kind it is.

The corpus is a JSONL file, an output a line, with ``text``, ``cause`` (program, hardware, network, transient, capacity
or unknown), ``reason_line`` (the line that a person would quote) and, if there is something to say, ``note``. The
reader is laggard's own, given all as the standard error of one process that ended with 1; or with ``--tool`` any
command, which is given one text on its standard input and prints ``{"line": ..., "kind": ...}``.

**right_line**: white space is made single, and an ellipsis at the end goes. Then both lines are the same, or one
contains the other and has half its length or 40 characters, or the end of one is the beginning of the other, with 40
characters or more. So prefixes may be left out or kept, and long lines cut.

**harmful**: the kind would lead to the wrong thing. Read as of the program or of capacity, a failure that comes again
ends the job: that is wrong for hardware, the network and what passes, and the program is wrong for capacity too. Read
as hardware, it speaks against the node: that is wrong for the program, capacity and what passes. The network and what
passes only make the job wait, and ``unknown`` leads to nothing; where the cause is unknown, nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from benchmarks.tables import table
from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.reading.signatures import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
HARMFUL: Mapping[str, frozenset[str]] = {
    "program": frozenset({"hardware", "network", "transient", "capacity"}),
    "capacity": frozenset({"hardware", "network", "transient"}),
    "hardware": frozenset({"program", "transient", "capacity"}),
}
ENOUGH_CHARACTERS = 40
TOOL_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One output of the corpus."""

    text: str
    cause: str
    reason_line: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader makes of an output."""

    line: str
    kind: str


Reader = Callable[[str], Reading]


class UnusableError(Exception):
    """The corpus or the tool cannot be used."""


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks failure-outputs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="labelled outputs, as JSONL")
    parser.add_argument("--tool", metavar="COMMAND", help="another reader (default: laggard's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there")
    parser.add_argument("--misses", action="store_true", help="print what was read wrong")
    options = parser.parse_args(arguments)
    reader = _tool(shlex.split(options.tool)) if options.tool else own_reader
    try:
        samples = read_corpus(options.corpus)
        readings = [reader(sample.text) for sample in samples]
    except UnusableError as error:
        parser.error(str(error))
    found = scores(samples, readings)
    print("\n".join(_tables(samples, readings, found)))
    if options.misses:
        print("\n".join(_misses(samples, readings)))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def own_reader(text: str) -> Reading:
    """Return what laggard says of a process that wrote this and ended with 1."""
    failure = explain([ProcessEnd("node1", 1, 1, 0.0, 0.0, tuple(text.splitlines()))], {})
    return Reading(failure.quote or failure.last_line, failure.kind)


def _tool(command: Sequence[str]) -> Reader:
    def read(text: str) -> Reading:
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True)
            told = json.loads(done.stdout)
            return Reading(str(told["line"] or ""), str(told["kind"]))
        except subprocess.CalledProcessError as error:
            raise UnusableError(f"{command[0]} exited with {error.returncode}: {error.stderr.strip()[-200:]}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnusableError(f"the tool does not work: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise UnusableError(
                f'{command[0]} printed {done.stdout[:80]!r} in place of {{"line": ..., "kind": ...}}'
            ) from None

    return read


def read_corpus(file: Path) -> list[Sample]:
    """Return the outputs of a corpus."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableError(f"{file} cannot be read: {error}") from None
    samples = [_sample(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not samples:
        raise UnusableError(f"{file} is empty")
    return samples


def _sample(line: str, place: str) -> Sample:
    try:
        told: Any = json.loads(line)
        sample = Sample(told["text"], told["cause"], told["reason_line"], told.get("note") or "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"{place}: no JSON object with text, cause and reason_line ({error!r})") from None
    if not all(isinstance(value, str) for value in (sample.text, sample.reason_line)):
        raise UnusableError(f"{place}: text and reason_line must be strings")
    if sample.cause not in KINDS:
        raise UnusableError(f"{place}: the cause is {sample.cause!r}, not one of {', '.join(KINDS)}")
    return sample


def is_right_line(quote: str, label: str) -> bool:
    """Return whether a quote is the line that a person would quote."""
    short, long = sorted((_normal(quote), _normal(label)), key=len)
    if short in long:
        return short == long or len(short) >= min(ENOUGH_CHARACTERS, len(long) / 2)
    return _overlap(short, long) or _overlap(long, short)


def _overlap(first: str, second: str) -> bool:
    return any(second.startswith(first[at:]) for at in range(len(first) - ENOUGH_CHARACTERS + 1))


def _normal(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip().removesuffix("…").removesuffix("...").strip()


def is_harmful(kind: str, cause: str) -> bool:
    """Return whether what a kind leads to is wrong for a cause."""
    return cause in HARMFUL.get(kind, ())


def scores(samples: Sequence[Sample], readings: Sequence[Reading]) -> dict[str, float]:
    """Return the total, the shares, and the counts."""
    pairs = list(zip(samples, readings, strict=True))
    counts = {
        "right_line": sum(is_right_line(reading.line, sample.reason_line) for sample, reading in pairs),
        "right_kind": sum(reading.kind == sample.cause for sample, reading in pairs),
        "harmful": sum(is_harmful(reading.kind, sample.cause) for sample, reading in pairs),
        "unknown_kind": sum(reading.kind == "unknown" for reading in readings),
    }
    shares = {name: count / len(samples) for name, count in counts.items()}
    return {"total": len(samples), **shares, **{f"n_{name}": count for name, count in counts.items()}}


def _tables(samples: Sequence[Sample], readings: Sequence[Reading], found: Mapping[str, float]) -> list[str]:
    names = ("right_line", "right_kind", "harmful", "unknown_kind")
    rows = [
        [name.replace("_", " "), f"{found[f'n_{name}']} of {found['total']}", f"{found[name]:.1%}"] for name in names
    ]
    read_as = Counter((sample.cause, reading.kind) for sample, reading in zip(samples, readings, strict=True))
    causes = [[cause, *(read_as[cause, kind] or "" for kind in KINDS)] for cause in KINDS]
    return [*table(["", "outputs", "share"], rows), "", *table(["cause \\ read as", *KINDS], causes)]


def _misses(samples: Sequence[Sample], readings: Sequence[Reading]) -> list[str]:
    lines = []
    for number, (sample, reading) in enumerate(zip(samples, readings, strict=True), 1):
        right = is_right_line(reading.line, sample.reason_line)
        if right and reading.kind == sample.cause:
            continue
        harm = ", harmful" if is_harmful(reading.kind, sample.cause) else ""
        lines += ["", f"output {number}: {sample.cause}, read as {reading.kind}{harm} ({sample.note})"]
        lines += [f"  read:  {reading.line}"] + ([] if right else [f"  label: {sample.reason_line}"])
    return lines
