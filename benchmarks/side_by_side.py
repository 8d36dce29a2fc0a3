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
from laggard.detectors.statistics.history import RESTART

__all__ = ["BUDGETS", "ROUND_S", "Outcome", "play"]

ROUND_S = 3.0
BUDGETS = (0.1, 0.01, 1e-4)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the jobs.

    Attributes
    ----------
    restarts
        Which jobs would restart, by what a restart costs and by budget, ``(n_costs, n_budgets, n_jobs)``.
    first_verdict
        The number of the round of each device's first verdict, from 0, and -1 without; ``(n_jobs, n_devices)``.
    first_restart
        The same for the first round in which its evidence is enough for a restart at the smallest budget.
    """

    restarts: NDArray[np.bool_]
    first_verdict: NDArray[np.intp]
    first_restart: NDArray[np.intp]


def play(
    jobs: Iterator[LogSeconds], rounds: int, costs_s: Sequence[float] = (0.0,), *, min_slowdown: float = 1.05
) -> Outcome:
    """Play the jobs' rounds at a budget of 1e-4, and note when evidence stands for each budget.

    A restart is made when the evidence is enough for one, and as much is lost as it costs.
    """
    shape = np.shape(first := next(jobs))
    names = tuple((f"job{job}-{row // 4}", str(row % 4)) for job, row in np.ndindex(*shape))
    places = {name: place for place, name in enumerate(names)}
    nodes = _nodes(names)
    analysis = SlowGPUAnalysis(
        groups={name: place // shape[1] for name, place in places.items()}, min_slowdown=min_slowdown
    )
    analysis.false_alarm_budget = BUDGETS[-1] * shape[0]
    restarts = np.zeros((len(costs_s), len(BUDGETS), shape[0]), np.bool_)
    verdict_at, restart_at = np.full((2, len(names)), -1)
    for number, readings in enumerate(islice(_chain(first, jobs), rounds)):
        now_s = ROUND_S * number
        for verdict in analysis.update_arrays(names, np.exp(readings).reshape(-1, 1), now_s=now_s):
            rows = nodes[verdict.host] if verdict.gpu is None else [places[verdict.host, verdict.gpu]]
            verdict_at[rows] = np.where(verdict_at[rows] < 0, number, verdict_at[rows])
        history = analysis._history  # the evidence for three budgets in one run
        evidence = shape[0] * history.evidence[:, RESTART].sum(axis=0)
        restart_at[(restart_at < 0) & (evidence >= 1 / min(BUDGETS))] = number
        enough = evidence.reshape(shape).max(axis=1) >= 1 / np.array(BUDGETS)[:, None]
        restarts[np.array(costs_s) == 0] |= enough
        for row in np.flatnonzero(evidence >= 1 / max(BUDGETS)) if any(costs_s) else ():
            sizes = history.last_residuals(int(row))
            slowdown = float(np.exp(np.median(sizes))) if len(sizes) else 1.0
            lost_s = (1 - 1 / slowdown) * (now_s - history.since_s[row])
            worth = lost_s >= np.array(costs_s)
            restarts[:, :, row // shape[1]] |= worth[:, None] & (evidence[row] >= 1 / np.array(BUDGETS))
    return Outcome(restarts, verdict_at.reshape(shape), restart_at.reshape(shape))


def _chain(first: LogSeconds, rest: Iterator[LogSeconds]) -> Iterator[LogSeconds]:
    yield first
    yield from rest


def _nodes(names: Sequence[DeviceId]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, (host, _) in enumerate(names):
        found.setdefault(host, []).append(place)
    return found
