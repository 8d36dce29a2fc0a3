"""Slow links on real wires: four machines behind a switch, of which ``tc`` slows one: who is named, how soon, and why.

The machines are network namespaces, so it needs root. Nothing is simulated but the speed of the wires: each machine
runs the real probes, and the first one the real detector, with the settings of nodes that have GPUs but a round every
second.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from laggard.collectors.device import VIRTUAL_DEVICES
from tests.clusters.machines import missing_for_machines, wait_for
from tests.clusters.wires import DEADLINE_S, Wires

__all__ = ["HEAD", "missing", "rows"]

ONSET, AFTER = 20, 24  # rounds before and after a fault begins
_ACCUSES = "slower than|times as slow as"
SLOW, OTHER = "node2", "node3"
HEAD = ("fault", "runs", "named", "rounds, median", "most", "wrong verdicts", "wrong notices", "likely cause")


@dataclass(frozen=True)
class WireFault:
    """What happens to the wires, and what only the right verdict says; empty if none is right."""

    begin: Callable[[Wires], None]
    right: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes
    ----------
    delay
        Rounds from the fault to the right verdict; ``None`` if there was none.
    cause
        What that verdict gives as the likely cause.
    verdicts, notices
        What accused somebody or something else.
    """

    delay: int | None
    cause: str
    verdicts: int
    notices: int


def _slowed(side: str, times: float) -> WireFault:
    return WireFault(lambda wires: wires.slow(SLOW, **{side.removesuffix("s"): times}), rf"{SLOW} {side} \d")


FAULTS: Mapping[str, WireFault] = {
    "sends 10 times as slow": _slowed("sends", 10),
    "sends 100 % slower": _slowed("sends", 2),
    "sends 30 % slower": _slowed("sends", 1.3),
    "sends 10 % slower": _slowed("sends", 1.1),
    "receives 100 % slower": _slowed("receives", 2),
    "receives 30 % slower": _slowed("receives", 1.3),
    "receives 10 % slower": _slowed("receives", 1.1),
    "cable pulled": WireFault(lambda wires: wires.network.cut(SLOW), f"{SLOW}: no other node reaches it"),
    "other traffic fills its link": WireFault(lambda wires: wires.compete(SLOW, OTHER)),
    "nothing": WireFault(lambda wires: wires.slow(SLOW)),
}


def missing() -> str | None:
    """Return why there can be no such machines here; None if they can be made."""
    reason = missing_for_machines("tc", "chrt")
    if reason is None and subprocess.run(["chrt", "--fifo", "1", "true"], capture_output=True).returncode != 0:
        reason = "processes may not have real-time priority here"
    return reason


def rows(repeats: int, only: str = "") -> Iterator[Sequence[object]]:
    """Yield a row for each fault whose name contains a text."""
    chosen = [name for name in FAULTS if only in name]
    with tqdm(total=repeats * len(chosen), unit="run", disable=None) as bar:
        for name in chosen:
            outcomes = []
            for _ in range(repeats):
                bar.set_description(name)
                outcomes.append(play(FAULTS[name]))
                bar.update()
            yield name, *_summary(outcomes, FAULTS[name])


def play(fault: WireFault) -> Outcome:
    """Run four machines through one fault, until it is found or for so many rounds."""
    with _machines() as wires:
        wires.start([sys.executable, "-m", "benchmarks.link_node"], {VIRTUAL_DEVICES: "1"})
        wait_for(lambda: wires.n_rounds >= ONSET, "the fault's first round", DEADLINE_S)
        before, since = wires.history(), wires.n_rounds
        fault.begin(wires)

        def is_over() -> bool:
            return wires.n_rounds >= since + AFTER or _right(wires.history()[len(before) :], fault) is not None

        wait_for(is_over, "the last round", DEADLINE_S)
        said = wires.history()
    found = _right(said[len(before) :], fault)
    accused = sum(kind == "verdicts" and body["severity"] != "well again" for _, kind, body in said)
    return Outcome(
        delay=None if found is None else found[0] - since,
        cause="" if found is None else found[1]["cause"],
        verdicts=accused - (found is not None),
        notices=sum(kind == "notices" and re.search(_ACCUSES, body) is not None for _, kind, body in said),
    )


def _right(said: Iterable[tuple[int, str, Any]], fault: WireFault) -> tuple[int, Mapping[str, Any]] | None:
    """Return the first right verdict, and after how many rounds it came."""
    for rounds, kind, body in said:
        if kind == "verdicts" and fault.right and re.search(fault.right, body["evidence"]):
            return rounds, body
    return None


@contextmanager
def _machines() -> Iterator[Wires]:
    folder = Path(tempfile.mkdtemp(prefix="lw-"))
    wires = Wires(folder)
    try:
        yield wires
    finally:
        wires.shut_down()
        shutil.rmtree(folder)


def _summary(outcomes: Sequence[Outcome], fault: WireFault) -> Sequence[object]:
    delays = [outcome.delay for outcome in outcomes if outcome.delay is not None]
    causes = Counter(re.sub(r"\d+", "N", outcome.cause) for outcome in outcomes if outcome.delay is not None)
    return (
        len(outcomes),
        len(delays) if fault.right else "-",
        f"{statistics.median(delays):g}" if delays else "-",
        max(delays, default="-"),
        sum(outcome.verdicts for outcome in outcomes),
        sum(outcome.notices for outcome in outcomes),
        "; ".join(f"{cause} ({count})" for cause, count in causes.most_common()) or "-",
    )
