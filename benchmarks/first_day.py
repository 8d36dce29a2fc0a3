"""Everything that ten minutes on a GPU can tell, with nothing but CuPy, NumPy, psutil, nvidia-ml-py and tqdm.

Each part has its share of the time, and what one does not use goes to the later ones. A part that fails says why, and
the others go on. Without a GPU it runs on virtual devices, which shows that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import first_day_parts as parts
from benchmarks.first_day_parts import Bench
from benchmarks.machine import description
from benchmarks.neighbour import ONE_THREAD
from benchmarks.tables import table
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, gpu_names, local_devices
from laggard.errors import LaggardError

__all__ = ["PARTS", "Budget", "Part", "main", "with_section"]

# A call that a driver does not answer ends the command, with a line that names it: the tables so far are printed.
LEAST_S, GRACE_S = 300.0, 45.0
DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes
    ----------
    title
        Its heading.
    weight
        Its share of the time, relative to the other parts.
    run
        Prints its tables, in at most about the given seconds.
    page
        The document that its tables belong to.
    """

    title: str
    weight: float
    run: Callable[[Bench, float], None]
    page: str = "probes.md"


# What matters most comes first, in case the machine is taken away.
PARTS = (
    Part("A fresh rank", 20, parts.fresh_rank, "restart.md"),
    Part("Environment", 1, parts.environment),
    Part("Each probe alone", 8, parts.probes_alone),
    Part("Doctor", 8, parts.doctor),
    Part("From probe to verdict", 10, parts.chain),
    Part("With neighbours", 22, parts.neighbours),
    Part("One program", 24, parts.one_program, "intrusion.md"),
    Part("Ranks in lock step", 8, parts.lock_step, "intrusion.md"),
    Part("Device metrics", 4, parts.readers),
    Part("Saturated", 11, parts.saturated_devices),
)


class Budget:
    """Divides the time that is left among the parts that are left.

    Parameters
    ----------
    seconds
        The time for all.
    weights
        Of the parts, in their order.
    clock
        A monotonic clock.
    """

    def __init__(self, seconds: float, weights: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._weights = weights
        self._clock = clock
        self._end_s = clock() + seconds

    def seconds_for(self, number: int) -> float:
        """Return how long a part may take, 0 if the time is over."""
        left_s = max(0.0, self._end_s - self._clock())
        return left_s * self._weights[number] / sum(self._weights[number:])


@dataclass
class Outcome:
    """What a part has printed, how long it took, and why it failed or was left out; empty if neither."""

    title: str
    page: str
    text: str = ""
    seconds: float = 0.0
    problem: str = ""
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = [f"## {self.title}", "", *self.text.strip().splitlines(), *([""] if self.text else [])]
        if self.problem:
            self.lines += [self.problem, ""]


def main(argv: list[str]) -> int:
    """Run all parts and print their tables as Markdown; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks first-day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all parts (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=4, help="virtual devices, if there is no GPU (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all tables and readings to FILE")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks")
    options = parser.parse_args(argv)
    if options.minutes <= 0 or options.devices < 1:
        parser.error("--minutes must be greater than 0 and --devices at least 1")
    if not ONE_THREAD.items() <= os.environ.items():  # NumPy reads them when it is loaded
        os.execve(sys.executable, sys.orig_argv, os.environ | ONE_THREAD)  # noqa: S606 - this very command
    faulthandler.dump_traceback_later(max(LEAST_S, 60 * options.minutes + GRACE_S), exit=True)
    try:
        return _run_all(parser, options)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run_all(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    machine = description()
    with tempfile.TemporaryDirectory() as folder:
        environ = {} if gpu_names() else {VIRTUAL_DEVICES: str(options.devices), VIRTUAL_DEVICE_DIR: folder}
        try:
            bench = Bench(local_devices(os.environ | environ), environ)
        except LaggardError as error:
            parser.error(str(error))
        print(f"# The first day on {bench.device.model}\n\n{machine}\n", flush=True)
        outcomes: list[Outcome] = []
        budget = Budget(60 * options.minutes, [part.weight for part in PARTS])
        for number, part in enumerate(PARTS):
            outcomes.append(_run(part, bench, budget.seconds_for(number)))
            print("\n".join(outcomes[-1].lines), flush=True)
            if options.json:
                options.json.write_text(json.dumps(_as_json(machine, bench, outcomes), indent=1))
    summary = table(
        ["expected", "holds", "found"], ([name, "yes" if ok else "NO", what] for name, ok, what in bench.checks)
    )
    print("\n".join(["## Expectations", "", *summary]))
    if options.write:
        _write(bench.device.model, machine, outcomes)
    return 1 if any(outcome.problem and outcome.seconds for outcome in outcomes) else 0


def _run(part: Part, bench: Bench, seconds: float) -> Outcome:
    if seconds == 0:
        return Outcome(part.title, part.page, problem="Left out: the time was over.")
    sys.stderr.write(f"{part.title}: {seconds:.0f} s\n")
    begun_s, printed, problem = time.monotonic(), io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            part.run(bench, seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are still worth their time
        traceback.print_exc()
        problem = f"Failed: {type(error).__name__}: {error}"
    return Outcome(part.title, part.page, printed.getvalue(), time.monotonic() - begun_s, problem)


def _as_json(machine: str, bench: Bench, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "machine": machine,
        "model": bench.device.model,
        "parts": [vars(outcome) for outcome in outcomes],
        "checks": bench.checks,
        "readings": bench.readings,
    }


def _write(model: str, machine: str, outcomes: Sequence[Outcome]) -> None:
    for page in sorted({part.page for part in PARTS}):
        path = DOCS / page
        lines = [f"Measured with `python -m benchmarks first-day` on: {machine}.", ""]
        lines += [line for outcome in outcomes if outcome.page == page for line in _lower(outcome.lines)]
        path.write_text(with_section(path.read_text(encoding="utf-8"), f"The first day on {model}", lines), "utf-8")


def _lower(lines: Sequence[str]) -> list[str]:
    """Return lines with their headings one level lower."""
    return [f"#{line}" if line.startswith("#") else line for line in lines]


def with_section(text: str, title: str, lines: Sequence[str]) -> str:
    """Return a document with this section in place of the one with the same title, or at its end."""
    section = "\n".join([f"## {title}", "", *lines]).rstrip() + "\n"
    existing = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if existing.search(text):
        return existing.sub(lambda found: section + ("\n" if found.end() < len(text) else ""), text)
    return f"{text.rstrip()}\n\n{section}"
