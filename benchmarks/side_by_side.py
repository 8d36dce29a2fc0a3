"""Many simulated jobs at once, each a group of one analysis: forty times as fast as one after another.

The false-alarm budget is one job's times the number of jobs, so each job has the evidence that it would have alone.
Restarts are decided by the product's own rule, for each job alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.job_kinds import WORST_CHIP, LogSeconds
from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.statistics.history import AT_TIMES

__all__ = ["BUDGETS", "NEVER", "ROUND_S", "Outcome", "grouped", "play"]

ROUND_S = 3.0
_PAST = 64  # rounds, of which the faster ones say what a device takes that is well
BUDGETS = (0.05, 1e-4)
NEVER = 10**6  # rounds


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the jobs; rounds count from 0, ``NEVER`` without.

    Attributes
    ----------
    evidence
        Which jobs have evidence against any device, by budget, ``(n_budgets, n_jobs)``.
    found, at_times
        The round in which a device was last found to be slow for the first time since ``since``, and to be slow at
        times, ``(n_jobs, n_devices)``.
    accused
        Which jobs had a verdict at the last budget that a device is slow, by as much as matters; none if no cost was
        given.
    restarts
        How many restarts each job asked for at the last budget, ``(n_jobs,)``; zero if no cost was given.
    early
        How many of them were for a device that had lost less than half of what a restart costs since it was last as
        fast as its peers, ``(n_jobs,)``: half-way, one goes along with another's restart.
    lines
        How many lines it printed, ``(n_jobs,)``; zero if no cost was given.
    """

    evidence: NDArray[np.bool_]
    found: NDArray[np.intp]
    at_times: NDArray[np.intp]
    accused: NDArray[np.bool_]
    restarts: NDArray[np.intp]
    early: NDArray[np.intp]
    lines: NDArray[np.intp]


def grouped(shape: tuple[int, int], **settings: float) -> tuple[SlowGPUAnalysis, tuple[DeviceId, ...]]:
    """Return an analysis of so many jobs of so many devices, and the devices' names."""
    names = tuple((f"job{job}-{row // 4}", str(row % 4)) for job, row in np.ndindex(*shape))
    analysis = SlowGPUAnalysis(groups={name: place // shape[1] for place, name in enumerate(names)}, **settings)
    analysis.false_alarm_budget = BUDGETS[-1] * shape[0]
    return analysis, names


def play(
    jobs: Iterator[LogSeconds],
    rounds: int,
    cost_s: float | None = None,
    *,
    since: int = 0,
    round_s: float = ROUND_S,
    **settings: float,
) -> Outcome:
    """Play the jobs' rounds; note when devices are found, and what is told and asked for if a restart costs so much.

    A round is an array ``(n_jobs, n_devices)``, or ``(n_jobs, n_devices, n_repeats)``.
    """
    first = next(jobs)
    shape = (int(first.shape[0]), int(first.shape[1]))
    analysis, names = grouped(shape, **settings)
    told = None if cost_s is None else _Told(analysis, names, shape, cost_s)
    most = np.full(shape[0], -np.inf)
    found, at_times = np.full((2, *shape), NEVER)
    for number, readings in enumerate(islice(chain([first], jobs), rounds)):
        now_s = round_s * number
        if told is None:  # to word what nobody reads would take longer than all else
            analysis._history.reported[:] = 255
        verdicts = analysis.update_arrays(names, np.exp(readings).reshape(len(names), -1), now_s=now_s)
        if told is not None:
            told.lose(readings.reshape(*shape, -1).mean(axis=2), round_s)
            told.add(verdicts, now_s)
        history = analysis._history
        odds = np.where(history.number > 0, history.odds, -np.inf).max(axis=0).reshape(shape).max(axis=1)
        most = np.maximum(most, odds + np.log(shape[0]))
        if number >= since:
            found[history.found[:AT_TIMES].any(axis=0).reshape(shape) & (found == NEVER)] = number
            at_times[history.found[AT_TIMES].reshape(shape) & (at_times == NEVER)] = number
    evidence = most >= -np.log(BUDGETS)[:, None]
    none = np.zeros(shape[0], np.intp)
    counts = (none,) * 3 if told is None else (told.restarts, told.early, told.lines)
    accused = np.zeros(shape[0], np.bool_) if told is None else told.accused
    return Outcome(evidence, found, at_times, accused, *counts)


class _Told:
    """What each job prints, and the restarts that it asks for."""

    def __init__(
        self, analysis: SlowGPUAnalysis, names: tuple[DeviceId, ...], shape: tuple[int, int], cost_s: float
    ) -> None:
        self.lines, self.restarts, self.early = np.zeros((3, shape[0]), np.intp)
        self.lost_s = np.zeros(shape)
        self._first: list[LogSeconds] = []  # rounds, against the peers
        self._usual = np.zeros(shape)
        self._cost_s = cost_s
        self.accused = np.zeros(shape[0], np.bool_)
        self._analysis, self._shape = analysis, shape
        self._devices = [names[job * shape[1] : (job + 1) * shape[1]] for job in range(shape[0])]
        self._of_host = {name[0]: job for job, devices in enumerate(self._devices) for name in devices}
        self._restarts = [Restarts(RestartCost(cost_s)) for _ in self._devices]
        self._open: set[int] = set()  # jobs with a slow device

    def lose(self, readings: LogSeconds, round_s: float) -> None:
        """Add what each device lost in a round, against its peers and its own first rounds."""
        against_peers = readings - np.median(readings, axis=1, keepdims=True)
        if len(self._first) < _PAST:
            self._first.append(against_peers)
            self._usual = np.minimum(WORST_CHIP, np.quantile(self._first, 0.25, axis=0))
        self.lost_s = np.maximum(0.0, self.lost_s - round_s * np.expm1(self._usual - against_peers))

    def add(self, verdicts: list[Verdict], now_s: float) -> None:
        by_job: dict[int, list[Verdict]] = {job: [] for job in self._open}
        for verdict in verdicts:
            by_job.setdefault(self._of_host[verdict.host], []).append(verdict)
            self.accused[self._of_host[verdict.host]] |= verdict.action == "restart"
        for notice in self._analysis.take_notices():
            self.lines[self._of_host[notice.group.first[0]]] += 1
        grounds = Grounds(self._analysis.episode, {}, self._analysis.min_slowdown)
        for job, new in by_job.items():
            found = self._restarts[job].weigh(new, grounds, self._devices[job], now_s)
            self.lines[job] += len(found)
            for each in found:
                if each.action == "restart":
                    self.restarts[job] += 1
                    out = [name[0] == each.host and each.gpu in (name[1], None) for name in self._devices[job]]
                    self.early[job] += self.lost_s[job, out].max() < self._cost_s / 2
            (self._open.add if self._restarts[job]._incidents.open else self._open.discard)(job)
