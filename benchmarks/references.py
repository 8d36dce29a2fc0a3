"""Jobs in which devices read something else for a while, though nothing is wrong: idle, cold, busier, in a phase.

``python -m benchmarks detection --only references`` prints the table; it needs no timings. The jobs are played as in a
real one: analysis, states of devices, and what a restart is worth, which here costs 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.job_kinds import LogSeconds, quiet
from benchmarks.tables import table
from laggard.collectors.causes import TEMPERATURE, UTILISATION
from laggard.collectors.device import DeviceId
from laggard.detectors import RestartCost, SlowGPUAnalysis, Verdict
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.evidence import Reason
from laggard.detectors.judging.device_readings import more_to_do
from laggard.detectors.judging.device_states import DeviceState, DeviceStates
from laggard.kvstore.control import LaunchRecord, NodeRecord

__all__ = ["KINDS", "Conditions", "Outcome", "play", "references"]

ROUND_S = 3.0
COST_S = 30.0
SIZE, PER_NODE = 16, 4
ONSET = 120  # of the fault, in rounds
SLOW = 6  # the device with the fault: on the second node
_BUDGET = 1e-4
_HEALTHY_ROUNDS = 400
_ROUNDS_AFTER = {1.1: 150, 1.2: 80, 2.0: 40}  # by the fault's slowdown


@dataclass(slots=True)
class Conditions:
    """One round of all jobs: what devices read, and what is known of them, ``(n_jobs, n_devices)``."""

    log_seconds: LogSeconds
    utilisation: NDArray[np.float64] | None = None  # in percent
    temperature_c: NDArray[np.float64] | None = None
    has_progress: bool = False


Kind = Callable[[np.random.Generator, int], Iterator[Conditions]]

_NODE = slice(PER_NODE)
_HALF = slice(SIZE // 2)
_LAST_STAGE = slice(SIZE - 2, SIZE)  # of eight


def _idle_first(
    rng: np.random.Generator, jobs: int, *, devices: slice, rounds: int = 8, is_known: bool = False
) -> Iterator[Conditions]:
    """Let some devices be idle at first, and 6 % faster."""
    for number, readings in enumerate(quiet(rng, jobs, SIZE)):
        busy = np.full(readings.shape, 80.0)
        if number < rounds:
            readings[:, devices] -= 0.06
            busy[:, devices] = 0.0
        yield Conditions(readings, busy if is_known else None)


def _cold_replacement(rng: np.random.Generator, jobs: int, *, is_known: bool) -> Iterator[Conditions]:
    """Let a node join after 50 rounds, cold, and warm up by 6 % in 100 rounds."""
    for number, readings in enumerate(quiet(rng, jobs, SIZE)):
        warmth = float(np.clip((number - 50) / 100, 0, 1))
        readings[:, _NODE] += -0.06 * (1 - warmth)
        temperatures = np.full(readings.shape, 65.0)
        temperatures[:, _NODE] = 35 + 30 * warmth
        if number < 50:
            readings[:, _NODE] = np.nan
        yield Conditions(readings, None, temperatures if is_known else None)


def _busier_stage(rng: np.random.Generator, jobs: int) -> Iterator[Conditions]:
    """Let all devices be idle for 20 rounds, and then the last of eight stages 10 % busier than the others."""
    for number, readings in enumerate(quiet(rng, jobs, SIZE)):
        busy = np.zeros(readings.shape)
        if number >= 20:
            busy = np.clip(rng.normal(80, 3, readings.shape), 0, 100)
            readings += 0.2
            busy[:, _LAST_STAGE] += 8
            readings[:, _LAST_STAGE] += np.log(1.1)
        yield Conditions(readings, np.round(busy))


def _busy_with_progress(rng: np.random.Generator, jobs: int) -> Iterator[Conditions]:
    """Let devices be idle until the first progress, then slower by 20 %, give or take 2 % each."""
    load = np.clip(rng.normal(0.2, 0.02, (jobs, SIZE)), 0.16, 0.24)
    for number, readings in enumerate(quiet(rng, jobs, SIZE)):
        yield Conditions(readings + load * (number >= 20), has_progress=number >= 20)


KINDS: dict[str, Kind] = {
    "one node idle in its first eight rounds": partial(_idle_first, devices=_NODE),
    "the same, utilisation known": partial(_idle_first, devices=_NODE, is_known=True),
    "half of the nodes idle in their first eight rounds": partial(_idle_first, devices=_HALF),
    "one node idle in its first 100 rounds, utilisation known": partial(
        _idle_first, devices=_NODE, rounds=100, is_known=True
    ),
    "a cold replacement node warms up by 6 %": partial(_cold_replacement, is_known=False),
    "the same, temperature known": partial(_cold_replacement, is_known=True),
    "all idle for 20 rounds, then the last of eight stages 10 % busier, utilisation known": _busier_stage,
    "all idle until the first progress, then 20 % slower, give or take 2 %": _busy_with_progress,
}


@dataclass(slots=True)
class Outcome:
    """What became of the jobs: rounds are counted from 0, and -1 is never.

    Attributes
    ----------
    first_verdict
        Of each device, ``(n_jobs, n_devices)``.
    restarts
        By job: the hosts of all restarts asked for, with their rounds.
    """

    first_verdict: NDArray[np.intp]
    restarts: list[dict[int, int]] = field(default_factory=list)


class _Player:
    """Many jobs side by side: one analysis, in which each is a group, and all else for each job alone."""

    def __init__(self, jobs: int) -> None:
        self.names = tuple((f"{job}-{row // PER_NODE}", str(row % PER_NODE)) for job, row in np.ndindex(jobs, SIZE))
        self._by_job = [self.names[job * SIZE : (job + 1) * SIZE] for job in range(jobs)]
        groups = {name: job for job, devices in enumerate(self._by_job) for name in devices}
        self._analysis = SlowGPUAnalysis(groups=groups)
        self._analysis.false_alarm_budget = _BUDGET * jobs
        self._states = [DeviceStates() for _ in range(jobs)]
        self._restarts = [Restarts(RestartCost(COST_S)) for _ in range(jobs)]
        for job, restarts in enumerate(self._restarts):
            gpus = tuple(map(str, range(PER_NODE)))
            nodes = tuple(NodeRecord(f"{job}-{node}", "", gpus) for node in range(SIZE // PER_NODE + 1))
            restarts.begin(LaunchRecord(0, nodes[:-1], nodes[-1:]))
        self._open: set[int] = set()

    def round(self, conditions: Conditions, now_s: float) -> dict[int, list[Verdict]]:
        """Play one round of all jobs; return the verdicts of each job that has any."""
        found: dict[int, list[Verdict]] = {job: [] for job in self._open}
        states = self._note_states(conditions)
        seconds = np.exp(conditions.log_seconds).reshape(-1, 1)
        for verdict in self._analysis.update_arrays(self.names, seconds, now_s=now_s, states=states):
            found.setdefault(int(verdict.host.partition("-")[0]), []).append(verdict)
        present = ~np.isnan(conditions.log_seconds)
        return {job: self._weigh(job, new, present[job], now_s) for job, new in found.items()}

    def _weigh(self, job: int, new: Sequence[Verdict], present: NDArray[np.bool_], now_s: float) -> list[Verdict]:
        devices, states = self._by_job[job], self._states[job]

        def why_not(verdict: Verdict) -> Reason | None:
            accused = [each for each in devices if each[0] == verdict.host and verdict.gpu in {None, each[1]}]
            return None if verdict.evidence.own_past else more_to_do(accused, self._analysis, states, {}, {})

        judged = {device for device, is_present in zip(devices, present, strict=True) if is_present}
        grounds = Grounds(self._analysis.episode, {}, self._analysis.min_slowdown, why_not, holds_up=False)
        told = self._restarts[job].weigh(new, grounds, judged, now_s)
        self._open.add(job)
        return told

    def _note_states(self, conditions: Conditions) -> NDArray[np.uint8]:
        if conditions.utilisation is None and conditions.temperature_c is None:
            return np.full(conditions.log_seconds.size, DeviceState.BUSY * conditions.has_progress, np.uint8)
        found: list[int] = []
        known = {UTILISATION: conditions.utilisation, TEMPERATURE: conditions.temperature_c}
        for job, (devices, states) in enumerate(zip(self._by_job, self._states, strict=True)):
            for row, device in enumerate(devices):
                tags = {tag: str(values[job, row]) for tag, values in known.items() if values is not None}
                if tags:
                    states.note(device, tags)
            found += states.of_round(devices, {}, has_progress=conditions.has_progress).values()
        return np.array(found, np.uint8)


def play(jobs: Iterator[Conditions], count: int, rounds: int, ratio: float = 1.0, onset: int = 0) -> Outcome:
    """Play jobs, in each of which one device is slower from a round on, and busier by as much."""
    player = _Player(count)
    rows = {name: np.unravel_index(place, (count, SIZE)) for place, name in enumerate(player.names)}
    outcome = Outcome(np.full((count, SIZE), -1), [{} for _ in range(count)])
    for number, conditions in enumerate(islice(jobs, rounds)):
        if number >= onset:
            conditions.log_seconds[:, SLOW] += np.log(ratio)
            if conditions.utilisation is not None:
                conditions.utilisation[:, SLOW] = np.minimum(100, conditions.utilisation[:, SLOW] * ratio)
        for job, verdicts in player.round(conditions, ROUND_S * number).items():
            for verdict in verdicts:
                _note(outcome, job, verdict, number, rows)
    return outcome


def _note(outcome: Outcome, job: int, verdict: Verdict, number: int, rows: dict[DeviceId, tuple[np.intp, ...]]) -> None:
    node = int(verdict.host.partition("-")[2])
    if verdict.action == "restart":
        outcome.restarts[job].setdefault(node, number)
    if verdict.severity != "well again":
        gpus = map(str, range(PER_NODE)) if verdict.gpu is None else [verdict.gpu]
        for place in (rows[verdict.host, gpu] for gpu in gpus):
            if outcome.first_verdict[place] < 0:
                outcome.first_verdict[place] = number


def references(jobs: int) -> list[str]:
    """Play healthy jobs of each kind, and a quarter as many with a device that is slow later on or from the start."""
    rows, faulty = [], max(1, jobs // 4)
    for what, kind in KINDS.items():
        healthy = play(kind(np.random.default_rng(1), jobs), jobs, _HEALTHY_ROUNDS)
        accused = int((healthy.first_verdict >= 0).any(axis=1).sum())
        row: list[object] = [what, accused, sum(map(bool, healthy.restarts))]
        for ratio, onset in ((1.1, ONSET), (1.2, ONSET), (2.0, ONSET), (1.2, 0), (2.0, 0)):
            outcome = play(kind(np.random.default_rng(1), faulty), faulty, onset + _ROUNDS_AFTER[ratio], ratio, onset)
            row.append(_shown(outcome, onset))
        rows.append(row)
    faults = [f"{percent} % from round {ONSET}" for percent in (10, 20, 100)]
    faults += [f"{percent} % from the start" for percent in (20, 100)]
    lines = table(["healthy but", "with a verdict", "with a restart", *faults], rows)
    return [f"{jobs} healthy jobs of each kind, {faulty} with each fault:", "", *lines]


def _shown(outcome: Outcome, onset: int) -> str:
    """Return how many jobs have the fault as a suspect within 8 rounds, restarts for it, when, and wrong restarts."""
    first = outcome.first_verdict[:, SLOW]
    in_time = int(((first >= 0) & (first < onset + 8)).sum()) if onset else int((first >= 0).sum())
    node = SLOW // PER_NODE
    when = [ROUND_S * (restarts[node] - onset) for restarts in outcome.restarts if node in restarts]
    wrong = sum(bool(restarts.keys() - {node}) for restarts in outcome.restarts)
    after = f"{np.median(when):.0f} s" if when else "never"
    return f"{in_time}, {len(when)} after {after}, {wrong} wrong"
