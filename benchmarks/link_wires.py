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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
HEAD = (
    "fault",
    "runs",
    "node named",
    "with the side",
    "rounds, median",
    "most",
    "wrong verdicts",
    "wrong notices",
    "likely cause",
)


@dataclass(frozen=True)
class WireFault:
    """What happens to the wires, and what the right verdict on :data:`SLOW` says; empty if none is right."""

    begin: Callable[[Wires], None]
    right: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes
    ----------
    delay
        Rounds from the fault to the first verdict that names the node; ``None`` if there was none.
    evidence, cause
        What that verdict says.
    verdicts, notices
        What accused somebody or something else.
    """

    delay: int | None
    evidence: str
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
    """Run four machines through one fault, until the node is named or for so many rounds."""
    with _machines() as wires:
        wires.start([sys.executable, "-m", "benchmarks.link_node"], {VIRTUAL_DEVICES: "1"})
        wait_for(lambda: wires.n_rounds >= ONSET, "the fault's first round", DEADLINE_S)
        too_early, since = wires.history(), wires.n_rounds
        fault.begin(wires)

        def named() -> tuple[int, Mapping[str, Any]] | None:
            verdicts = (
                (rounds, body) for rounds, kind, body in wires.history()[len(too_early) :] if kind == "verdicts"
            )
            return next((each for each in verdicts if fault.right and each[1]["host"] == SLOW), None)

        wait_for(lambda: wires.n_rounds >= since + AFTER or named() is not None, "the last round", DEADLINE_S)
        said, first = wires.history(), named()
    wrong = [
        body["words"]["evidence"]
        for number, (_, kind, body) in enumerate(said)
        if kind == "verdicts"
        and body["severity"] != "well again"
        and (number < len(too_early) or not fault.right or body["host"] != SLOW)
    ]
    notices = [body for _, kind, body in said if kind == "notices" and re.search(_ACCUSES, body)]
    for text in (*wrong, *notices):
        tqdm.write(f"wrong: {text}", sys.stderr)
    if first is None:
        return Outcome(None, "", "", len(wrong), len(notices))
    rounds, verdict = first
    if not re.search(fault.right, verdict["words"]["evidence"]):
        tqdm.write(f"not the side: {verdict['words']['evidence']}", sys.stderr)
    return Outcome(rounds - since, verdict["words"]["evidence"], verdict["words"]["cause"], len(wrong), len(notices))


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
    named = [outcome for outcome in outcomes if outcome.delay is not None]
    delays = [outcome.delay for outcome in named if outcome.delay is not None]
    causes = Counter(re.sub(r"\d+", "N", outcome.cause) for outcome in named)
    return (
        len(outcomes),
        len(named) if fault.right else "-",
        sum(re.search(fault.right, outcome.evidence) is not None for outcome in named) if fault.right else "-",
        f"{statistics.median(delays):g}" if delays else "-",
        max(delays, default="-"),
        sum(outcome.verdicts for outcome in outcomes),
        sum(outcome.notices for outcome in outcomes),
        "; ".join(f"{cause} ({count})" for cause, count in causes.most_common()) or "-",
    )
