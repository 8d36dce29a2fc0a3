"""Jobs unlike independent noise: noise that lasts, noisy readings, intermittent faults, and phases of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.job_kinds import DEPENDENT, INTERMITTENT, PHASES, LogSeconds, noisy, quiet, unsteady
from benchmarks.setting import Setting
from benchmarks.side_by_side import Outcome, play
from benchmarks.tables import table

__all__ = ["at_times", "dependence", "noisy_steps", "phases", "unsteady_devices"]

_ROUNDS = 600  # of 3 s: half an hour
_COSTS_S = (0.0, 30.0, 60.0)
_SIZES = (4, 16, 64, 512)


def _seeded(size: int) -> np.random.Generator:
    return np.random.default_rng(size)


def dependence(setting: Setting) -> list[str]:
    """Count the healthy jobs with a restart, by the kind of noise, by what a restart costs, and by budget."""
    rows = []
    for what, kind in DEPENDENT.items():
        for size in setting.sizes(*_SIZES):
            jobs = setting.healthy if size < 256 else max(1, setting.healthy // 4)
            outcome = play(kind(_seeded(size), jobs, size), _ROUNDS, _COSTS_S)
            counts = [" / ".join(map(str, by_budget.sum(axis=1).tolist())) for by_budget in outcome.restarts]
            rows.append([what, size, jobs, *counts])
    head = [f"a restart costs {cost_s:.0f} s" for cost_s in _COSTS_S]
    lines = table(["noise", "devices", "jobs", *head], rows)
    return ["Jobs with a restart, with a budget of 0.1 / 0.01 / 1e-4:", "", *lines]


def noisy_steps(setting: Setting) -> list[str]:
    """Slow down one of 16 devices whose readings are noisy, from a known round on, for 16 rounds."""
    residuals = np.concatenate([np.log(series / np.median(series)) for series in setting.steps])
    rng, jobs, size = np.random.default_rng(9), setting.part(5, 20), 16

    def of_student(scale: float, shape: tuple[int, int]) -> LogSeconds:
        return scale * rng.standard_t(3, shape) / 3**0.5

    kinds: dict[str, Callable[[tuple[int, int]], LogSeconds]] = {
        "ResNet iterations": lambda shape: rng.choice(residuals, shape),
        "5 %, normal": lambda shape: rng.normal(0, 0.05, shape),
        "5 %, heavy tails": partial(of_student, 0.05),
        "8 %, normal": lambda shape: rng.normal(0, 0.08, shape),
        "8 %, heavy tails": partial(of_student, 0.08),
        "10 %, normal": lambda shape: rng.normal(0, 0.1, shape),
        "15 %, heavy tails": partial(of_student, 0.15),
    }
    rows = []
    for what, draw in kinds.items():
        healthy = play(noisy(rng, setting.healthy, size, draw=draw), 200)
        row: list[object] = [what, f"{healthy.restarts[0, -1].sum()} of {setting.healthy}"]
        for onset in (24, 100):
            for ratio in (1.2, 1.3, 2.0):
                outcome = play(_slowed(noisy(rng, jobs, size, draw=draw), onset, ratio), onset + 16)
                row.append(f"{_found(outcome, onset, 16)} ({_others(outcome)} wrong)")
        rows.append(row)
    head = [f"{100 * (ratio - 1):.0f} % from round {onset}" for onset in (24, 100) for ratio in (1.2, 1.3, 2.0)]
    return table(["noise", "healthy jobs of 200 rounds with a restart verdict", *head], rows)


def at_times(setting: Setting) -> list[str]:
    """Slow down one device at times, from round 16 on, and count how often and when it becomes a suspect."""
    rows, jobs = [], setting.part(5, 20)
    for what, kind in INTERMITTENT.items():
        for size in setting.sizes(4, 16, 64):
            outcome = play(kind(_seeded(size), jobs, size), 316)
            found = outcome.first_verdict[:, 0]
            when = f"{np.median(found[found >= 0]) - 15:.0f}" if (found >= 0).any() else ""
            rows.append([what, size, _found(outcome, 16, 200, device=0), when, _others(outcome, device=0)])
    return table(["one device", "devices", "suspect within 200 rounds", "median", "another accused"], rows)


def unsteady_devices(setting: Setting) -> list[str]:
    """Slow down one device in most of its rounds, but not in all: count the restart verdicts within 60 rounds."""
    rows, shares, jobs = [], np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]), 3 * setting.part(20, 4)
    for size in setting.sizes(2, 3, 4, 8, 16):
        for smallest, ratio in ((1.05, 1.2), (1.05, 2.0), (1.05, 8.0), (1.5, 2.0), (1.5, 8.0)):
            row: list[object] = [size, smallest, ratio]
            for onset in (0, 4, 8, 100):
                kind = unsteady(
                    _seeded(size), jobs * len(shares), size, shares=np.repeat(shares, jobs), ratio=ratio, onset=onset
                )
                at = play(kind, onset + 60, min_slowdown=smallest).first_restart[:, -1]
                delays = np.where(at >= onset, at - onset + 1.0, np.inf).reshape(len(shares), jobs)
                row += [_delays(delays[:2]), _delays(delays[2:])]
            rows.append(row)
    head = [f"from {onset}, {which}" for onset in (0, 4, 8, 100) for which in ("40 to 50 %", "60 to 100 %")]
    return table(["devices", "`min_slowdown`", "slowdown", *head], rows)


def _delays(rounds: LogSeconds) -> str:
    found = rounds[np.isfinite(rounds)]
    typical = f", {np.median(found):.0f}" if len(found) else ""
    return f"{100 * len(found) / rounds.size:.0f} %{typical}"


def phases(setting: Setting) -> list[str]:
    """Play jobs with phases, healthy and with a device of another node 10 and 20 % and twice as slow from round 400."""
    rows, jobs, size = [], setting.part(5, 20), 16
    for what, kind in {"none": quiet, **PHASES}.items():
        outcome = play(kind(_seeded(size), jobs, size), _ROUNDS, _COSTS_S)
        restarts = [int(by_budget[-1].sum()) for by_budget in outcome.restarts]
        row: list[object] = [what, f"{(outcome.first_verdict >= 0).any(axis=1).sum()}", *restarts]
        for ratio in (1.1, 1.2, 2.0):
            outcome = play(_slowed(kind(_seeded(size), jobs, size), 400, ratio), 408)
            row.append(_found(outcome, 400, 8))
        rows.append(row)
    head = ["jobs with a verdict", *(f"with a restart that costs {cost_s:.0f} s" for cost_s in _COSTS_S)]
    faults = [f"a fault of {100 * (ratio - 1):.0f} % found within 8 rounds" for ratio in (1.1, 1.2, 2.0)]
    return [f"{jobs} jobs of 16 devices each:", "", *table(["phase", *head, *faults], rows)]


def _slowed(jobs: Iterator[LogSeconds], onset: int, ratio: float) -> Iterator[LogSeconds]:
    """Slow down the last device of each job from a round on."""
    for number, readings in enumerate(jobs):
        readings[:, -1] += np.log(ratio) * (number >= onset)
        yield readings


def _found(outcome: Outcome, onset: int, within: int, device: int = -1) -> str:
    """Return the share of jobs in which the device has its first verdict in time."""
    delay = outcome.first_verdict[:, device] - onset
    return f"{100 * np.mean((delay >= 0) & (delay < within)):.0f} %"


def _others(outcome: Outcome, device: int = -1) -> int:
    """Return the number of jobs with a verdict against another device."""
    others = np.delete(outcome.first_verdict, device, axis=1)
    return int((others >= 0).any(axis=1).sum())
