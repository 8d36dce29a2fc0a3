"""A site of 1,000 nodes, a few of them lemons: without a memory, with the product's, and with an oracle's. Simulated.

The oracle knows all lemons from the first hour on: no memory can do more. A formula says the same
(docs/benchmarks/failures.md), and what the best memory could do that knows of failures alone.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import exp1
from scipy.stats import poisson

from benchmarks.tables import table
from laggard.resilience.decision.site import RATE_PER_HOUR, SHARE, Sighting, standings

_NODES, _DAYS = 1000, 60
_SIZES = (8, 16, 32, 64, 128, 256, 512)
_LARGE = 256
_SPARE = 16  # one node more for so many, and one
_BLAMED_RIGHTLY = 0.9
_BUSY = 0.9  # of the nodes
_LENGTHS_H = (4, 96)  # of jobs; their logarithm is drawn evenly
_STANDING_EVERY_H = 6
_GOOD_ASIDE = 0.005  # of good nodes: as many may be put aside
_HOUR_S = 3600.0

_Knows = Literal["nothing", "memory", "all"]


@dataclass
class _Job:
    name: str
    ends_h: int
    nodes: list[int]
    began_h: int
    spare: list[int] = field(default_factory=list)


@dataclass
class _Found:
    failures: float = 0.0  # of large jobs: how many are to be expected of the nodes that they used
    on_lemons: float = 0.0  # of these
    node_hours: float = 0.0  # of large jobs
    good_aside: float = 0.0  # share of the good nodes that are suspects, on average
    bad_aside: float = 0.0


def _simulate(seed: int, times: float, knows: _Knows) -> _Found:
    rng = np.random.default_rng(seed)
    lemons = {*rng.choice(_NODES, round(SHARE * _NODES), replace=False).tolist()}
    free, jobs, noted = {*range(_NODES)}, list[_Job](), list[Sighting]()
    suspects = {*lemons} if knows == "all" else set[int]()
    found, looks = _Found(), 0
    for hour in range(24 * _DAYS):
        if knows == "memory" and hour % _STANDING_EVERY_H == 0:
            suspects = {int(each.host) for each in standings(noted, hour * _HOUR_S) if each.is_suspect}
            found.good_aside += len(suspects - lemons) / (_NODES - len(lemons))
            found.bad_aside += len(suspects & lemons) / len(lemons)
            looks += 1
        while len(free) > (1 - _BUSY) * _NODES:
            size = int(rng.choice(_SIZES))
            given = size + 1 + size // _SPARE
            if given > len(free):
                break
            drawn = sorted(rng.permutation(sorted(free))[:given].tolist(), key=suspects.__contains__)
            free -= {*drawn}
            length_h = int(np.exp(rng.uniform(*np.log(_LENGTHS_H))))
            jobs.append(_Job(f"job-{seed}-{hour}-{len(jobs)}", hour + length_h, drawn[:size], hour, drawn[size:]))
        for job in jobs:
            _pass_hour(job, hour, rng, lemons, times, noted, found)
        for job in [job for job in jobs if job.ends_h <= hour]:
            hours = float(hour - job.began_h)
            noted += [Sighting(str(each), hour * _HOUR_S, "ran", job.name, hours=hours) for each in job.nodes]
            free |= {*job.nodes, *job.spare}
        jobs = [job for job in jobs if job.ends_h > hour]
    found.good_aside, found.bad_aside = found.good_aside / max(1, looks), found.bad_aside / max(1, looks)
    return found


def _pass_hour(
    job: _Job, hour: int, rng: np.random.Generator, lemons: set[int], times: float, noted: list[Sighting], found: _Found
) -> None:
    rates = RATE_PER_HOUR * np.array([times if each in lemons else 1.0 for each in job.nodes])
    fell = np.flatnonzero(rng.random(len(rates)) < rates)
    if len(job.nodes) >= _LARGE:
        found.failures += float(rates.sum())
        found.on_lemons += float(rates[rates > RATE_PER_HOUR].sum())
        found.node_hours += len(job.nodes)
    for place in fell.tolist():
        blamed = place if rng.random() < _BLAMED_RIGHTLY else int(rng.integers(len(job.nodes)))
        noted.append(Sighting(str(job.nodes[blamed]), hour * _HOUR_S, "failed", job.name))
        if job.spare:
            job.spare.append(job.nodes[blamed])
            job.nodes[blamed] = job.spare.pop(0)


def _fewer_by_oracle(times: float) -> float:
    """Return how many times fewer failures large jobs have if they use no lemon."""
    shortest_h, longest_h = _LENGTHS_H
    swapped = _BLAMED_RIGHTLY * times * RATE_PER_HOUR  # how often a lemon is that is in use, per hour
    spread = np.log(longest_h / shortest_h)
    left = (exp1(swapped * shortest_h) - exp1(swapped * longest_h)) / spread  # mean of exp(-swapped * length)
    share = (1 - left) / (swapped * (longest_h - shortest_h) / spread)  # of a job's time in which it has its lemons
    return float(1 + (times - 1) * SHARE * share)


def _avoidable(times: float) -> float:
    """Return the share of lemons' time that the best memory avoids which blames each failure rightly.

    By Neyman and Pearson, it puts aside the hours and numbers of failures that are likeliest for a lemon beside a good
    node, until that is so many of the good nodes' hours.
    """
    hours, numbers = np.arange(24 * _DAYS)[:, None], np.arange(1000)[None]
    rates = RATE_PER_HOUR, times * RATE_PER_HOUR
    good, bad = (np.asarray(poisson.pmf(numbers, rate * hours)).ravel() / len(hours) for rate in rates)
    likeliest = np.argsort(-bad / np.maximum(good, 1e-300))
    within = np.cumsum(good[likeliest]) <= _GOOD_ASIDE
    return float(bad[likeliest][within].sum())


def _rate(found: list[_Found]) -> float:
    """Return the failures of large jobs, per 1,000 node-days."""
    return 1000 * 24 * sum(each.failures for each in found) / sum(each.node_hours for each in found)


def _row(times: float, trials: int) -> list[str]:
    levels: tuple[_Knows, ...] = ("nothing", "memory", "all")
    without, remembering, knowing = ([_simulate(seed, times, each) for seed in range(trials)] for each in levels)
    by_oracle = [_rate([one]) / _rate([other]) for one, other in zip(without, knowing, strict=True)]
    error = 2 * float(np.std(by_oracle)) / max(1, trials - 1) ** 0.5
    on_lemons = [
        sum(each.on_lemons for each in found) / sum(each.node_hours for each in found)
        for found in (without, remembering)
    ]
    bad, good = (
        100 * float(np.mean(shares))
        for shares in ([each.bad_aside for each in remembering], [each.good_aside for each in remembering])
    )
    return [
        *(f"{times:g}", f"{_rate(without):.2f}", f"{_rate(remembering):.2f}"),
        f"{_rate(without) / _rate(remembering):.2f}",
        f"{_rate(without) / _rate(knowing):.2f} ± {error:.2f}",
        f"{_fewer_by_oracle(times):.2f}",
        f"{on_lemons[0] / on_lemons[1]:.2f}",
        f"{1 / (1 - _avoidable(times)):.2f}",
        *(f"{bad:.0f} %", f"{good:.2f} %"),
    ]


def main(argv: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks site", description=__doc__)
    parser.add_argument("--trials", type=int, default=4, help="simulated sites for each row (default: 4)")
    trials = parser.parse_args(argv).trials
    head = ["lemons fail N times as often", "failures of large jobs, per 1,000 node-days", "with a memory"]
    fewer_by = ["times fewer", "by an oracle", "by the formula", "of those on lemons", "at most"]
    rows = [_row(times, trials) for times in (10.0, 100.0)]
    print("\n".join(table([*head, *fewer_by, "lemons put aside", "good nodes put aside"], rows)))
    return 0
