"""Many simulated jobs at once, each a group of one analysis: forty times as fast as one after another.

The false-alarm budget is one job's times the number of jobs, so each job has the evidence that it would have alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.job_kinds import LogSeconds
from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.statistics.history import AT_TIMES

__all__ = ["BUDGETS", "NEVER", "ROUND_S", "Outcome", "grouped", "play"]

ROUND_S = 3.0
BUDGETS = (0.05, 1e-4)
NEVER = 10**6  # rounds
_DUE, _LEAST_S = 0.45, 16.0  # of a restart's cost, as in the product


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the jobs.

    Attributes
    ----------
    evidence
        Which jobs have evidence against any device, by budget, ``(n_budgets, n_jobs)``.
    restarts
        Which jobs restart at the last budget, by what that costs, ``(n_costs, n_jobs)``.
    found, at_times
        The round, from 0, in which a device was last found to be slow for the first time since ``since``, and to be
        slow at times; ``NEVER`` without; ``(n_jobs, n_devices)``.
    """

    evidence: NDArray[np.bool_]
    restarts: NDArray[np.bool_]
    found: NDArray[np.intp]
    at_times: NDArray[np.intp]


def grouped(shape: tuple[int, int], **settings: float) -> tuple[SlowGPUAnalysis, tuple[DeviceId, ...]]:
    """Return an analysis of so many jobs of so many devices, and the devices' names."""
    names = tuple((f"job{job}-{row // 4}", str(row % 4)) for job, row in np.ndindex(*shape))
    analysis = SlowGPUAnalysis(groups={name: place // shape[1] for place, name in enumerate(names)}, **settings)
    analysis.false_alarm_budget = BUDGETS[-1] * shape[0]
    return analysis, names


def play(
    jobs: Iterator[LogSeconds], rounds: int, costs_s: Sequence[float] = (), *, since: int = 0, **settings: float
) -> Outcome:
    """Play the jobs' rounds; note when devices are found, and when as much is lost as a restart must cost to be due."""
    first = next(jobs)
    shape = (int(first.shape[0]), int(first.shape[1]))
    analysis, names = grouped(shape, **settings)
    most = np.full(shape[0], -np.inf)
    restarts = np.zeros((len(costs_s), shape[0]), np.bool_)
    found, at_times = np.full((2, *shape), NEVER)
    due_s = np.maximum(_DUE * np.array(costs_s), np.minimum(_LEAST_S, costs_s))
    for number, readings in enumerate(islice(_chain(first, jobs), rounds)):
        now_s = ROUND_S * number
        analysis._new_verdicts.reported_hosts.clear()
        analysis._history.reported[:] = 255  # nothing is told: that would take longer than all else
        analysis.update_arrays(names, np.exp(readings).reshape(-1, 1), now_s=now_s)
        history = analysis._history
        odds = np.where(history.number > 0, history.odds, -np.inf).max(axis=0).reshape(shape).max(axis=1)
        most = np.maximum(most, odds + np.log(shape[0]))
        is_found = history.found[:AT_TIMES].any(axis=0).reshape(shape)
        if number >= since:
            found[is_found & (found == NEVER)] = number
            at_times[history.found[AT_TIMES].reshape(shape) & (at_times == NEVER)] = number
        for row in np.flatnonzero(is_found) if costs_s else ():
            slow = analysis._slowness_at(int(row))
            if slow is not None and slow.slowdown >= analysis.thresholds.min_slowdown:
                slow_s = min(1.0, slow.rounds / float(history.lasts[0, row] or 1)) * (now_s - history.since_s[row])
                restarts[:, row // shape[1]] |= (1 - 1 / max(1.0, slow.least)) * slow_s >= due_s
    evidence = most >= -np.log(BUDGETS)[:, None]
    return Outcome(evidence, restarts, found, at_times)


def _chain(first: LogSeconds, rest: Iterator[LogSeconds]) -> Iterator[LogSeconds]:
    yield first
    yield from rest
