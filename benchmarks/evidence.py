"""Graded evidence in simulated jobs: power beside the optimum, blindness, the budget, lines a day, the ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np
from scipy.stats import beta

from benchmarks.job_kinds import DEPENDENT, DISTURBED, INDEPENDENT, INTERMITTENT, Job, LogSeconds, day, noisy
from benchmarks.optimum import bayes_factor, cusum
from benchmarks.setting import Setting
from benchmarks.side_by_side import BUDGETS, NEVER, ROUND_S, Outcome, grouped, play
from benchmarks.tables import table
from laggard.detectors.notices import GroupSlower
from laggard.detectors.statistics import excursions, groups, history

__all__ = [
    "ablation",
    "all_slower",
    "at_times",
    "budget",
    "longest_runs",
    "never_blind",
    "noisy_steps",
    "optimum",
    "quiet_day",
    "slow_ramps",
]

_SIZE, _LARGE = 16, 32
_WITHIN = 16
_CELLS = ((0.05, 1.2), (0.08, 1.2), (0.1, 1.2), (0.1, 1.3))
_ONSETS = (24, 100)
_ROUNDS = 200
_FAULT = 700  # the round in which a fault begins, in a job that has learned its phases
_COST_S = 30.0
_TOGETHER = partial(day, together=True)


def slowed(jobs: Iterator[LogSeconds], onset: int, ratio: float) -> Iterator[LogSeconds]:
    """Slow down the last device of each job from a round on."""
    for number, readings in enumerate(jobs):
        readings[:, -1] += np.log(ratio) * (number >= onset)
        yield readings


def share(flags: np.ndarray) -> str:
    """Return a share of jobs in percent."""
    return f"{100 * float(np.mean(flags)):.0f} %"


def delays(outcome: Outcome, onset: int) -> np.ndarray:
    """Return after how many rounds the slow device of each job was found; a find before is none."""
    rounds = outcome.found[:, -1] - onset + 1
    return np.where((rounds >= 1) & (outcome.found[:, -1] != NEVER), rounds, NEVER)


def _power(jobs: int, deviation: float, ratio: float, onset: int, seed: int) -> tuple[Outcome, np.ndarray]:
    kind = noisy(np.random.default_rng(seed), jobs, _SIZE, draw=_normal(np.random.default_rng(seed + 1), deviation))
    outcome = play(slowed(kind, onset, ratio), onset + _WITHIN)
    return outcome, delays(outcome, onset)


def _normal(rng: np.random.Generator, deviation: float) -> Callable[[tuple[int, int]], LogSeconds]:
    return lambda shape: deviation * rng.standard_normal(shape)


def optimum(setting: Setting) -> list[str]:
    """Slow down one of 16 devices in normal noise; beside it what the best tests find."""
    rows, jobs = [], setting.part(2, 200)
    for deviation, ratio in (*_CELLS, (0.15, 1.2)):
        row: list[object] = [f"{100 * deviation:.0f} %", f"{100 * (ratio - 1):.0f} %"]
        for onset in _ONSETS:
            outcome, found = _power(jobs, deviation, ratio, onset, 5)
            rng, size = np.random.default_rng(6), float(np.log(ratio))
            slow = deviation * rng.standard_normal((4 * jobs, onset + _WITHIN))
            slow[:, onset:] += size
            best = [test(slow, onset, size, deviation, _SIZE, _ROUNDS, BUDGETS[-1]) for test in (cusum, bayes_factor)]
            wrong = int((np.minimum(outcome.found, outcome.at_times)[:, :-1] != NEVER).any(axis=1).sum())
            row += [share(found <= _WITHIN), *(share(each <= _WITHIN) for each in best), wrong]
        rows.append(row)
    per_onset = ("laggard", "knows the past", "learns the past", "wrong")
    head = [f"from {onset}: {what}" for onset in _ONSETS for what in per_onset]
    return [f"{jobs} jobs of 16 devices:", "", *table(["noise", "slower by", *head], rows)]


def noisy_steps(setting: Setting) -> list[str]:
    """Slow down one of 64 devices whose readings are drawn from real iterations, for 31 rounds from round 24 on."""
    residuals = np.concatenate([np.log(series / np.median(series)) for series in setting.steps])
    rows, jobs = [], setting.part(5, 50)
    for ratio in (1.1, 1.2, 1.3, 1.5, 2.0):
        rng = np.random.default_rng(9)
        kind = noisy(rng, jobs, 64, draw=lambda shape, rng=rng: rng.choice(residuals, shape))  # type: ignore[misc]
        outcome = play(slowed(kind, 24, ratio), 55)
        found = delays(outcome, 24)
        wrong = int((outcome.found[:, :-1] != NEVER).any(axis=1).sum())
        rows.append([f"{100 * (ratio - 1):.0f} %", share(found <= _WITHIN), share(found <= 31), wrong])
    return table(["slower by", "found within 16 rounds", "within 31", "jobs with another accused"], rows)


def slow_ramps(setting: Setting) -> list[str]:
    """Let one of 16 devices become slower bit by bit, from round 24 on; show how slow it is when it is found."""
    rows, jobs = [], setting.part(5, 200)
    for deviation in (0.005, 0.01, 0.02):
        for a_round in (0.001, 0.0002):
            kind = noisy(np.random.default_rng(8), jobs, _SIZE, draw=_normal(np.random.default_rng(9), deviation))
            outcome = play(_creeping(kind, 24, a_round), 24 + round(0.1 / a_round))
            reached = np.sort(np.expm1(a_round * np.minimum(delays(outcome, 24), NEVER)))
            shown = [f"{100 * reached[int(part * jobs)]:.1f} %" for part in (0.5, 0.95)]
            wrong = int((outcome.found[:, :-1] != NEVER).any(axis=1).sum())
            rows.append([f"{100 * deviation:g} %", f"{100 * a_round:g} %", *shown, wrong])
    return table(["noise", "slower by, a round", "found at", "95 % at", "jobs with another accused"], rows)


def _creeping(jobs: Iterator[LogSeconds], onset: int, a_round: float) -> Iterator[LogSeconds]:
    for number, readings in enumerate(jobs):
        readings[:, -1] += a_round * max(0, number - onset)
        yield readings


def at_times(setting: Setting) -> list[str]:
    """Slow down one device at times, from round 16 on, and count how often and when it is found."""
    rows, jobs = [], setting.part(5, 200)
    for what, kind in INTERMITTENT.items():
        for size in setting.sizes(4, 16, 64):
            outcome = play(kind(np.random.default_rng(size), jobs, size), 216)
            first = np.minimum(outcome.found, outcome.at_times)
            rounds = np.sort(first[:, 0]) - 15
            others = int((first[:, 1:] != NEVER).any(axis=1).sum())
            worst = rounds[int(0.95 * jobs)]
            rows.append([what, size, share(rounds <= 120), f"{np.median(rounds):.0f}", worst, others])
    return table(["one device", "devices", "within 120 rounds", "median", "95 % within", "another accused"], rows)


def never_blind(setting: Setting) -> list[str]:
    """Slow down a device of 32 for good, in jobs with phases, bursts and outliers; in all others, too."""
    rows, jobs = [], setting.part(5, 200)
    kinds = {**DISTURBED, **INDEPENDENT, **DEPENDENT}
    for what, kind in kinds.items():
        row: list[object] = [what]
        onset, size = (_FAULT, _LARGE) if what in DISTURBED else (150, _SIZE)
        for ratio in (2.0, 1.2):
            outcome = play(slowed(kind(np.random.default_rng(1), jobs, size), onset, ratio), onset + 60, since=onset)
            rounds = np.sort(np.maximum(outcome.found[:, -1] - onset + 1, 1))
            limit = 10 if ratio == 2.0 else 40
            worst = rounds[int(0.99 * jobs)]
            shown = "more than 60" if worst > NEVER // 2 else str(worst)
            row += [share(rounds <= limit), f"{np.median(rounds):.0f}", shown]
        rows.append(row)
    head = ["twice as slow: within 10 rounds", "median", "99 %", "20 %: within 40 rounds", "median", "99 %"]
    return [f"{jobs} jobs of each kind:", "", *table(["healthy but", *head], rows)]


def budget(setting: Setting) -> list[str]:
    """Count healthy jobs with evidence in 200 rounds, by budget, and with a restart in 600 at a cost of 30 s."""
    rows, jobs = [], setting.part(5, 200)
    for what, kind in {**INDEPENDENT, **DEPENDENT, **DISTURBED}.items():
        size = _LARGE if what in DISTURBED else _SIZE
        short = play(kind(np.random.default_rng(77), jobs, size), _ROUNDS)
        many = play(kind(np.random.default_rng(1), 3 * setting.trials, size), 3 * _ROUNDS, _COST_S)
        restarts, total = int(np.count_nonzero(many.restarts)), len(many.restarts)
        upper = 1.0 if restarts == total else float(beta.ppf(0.95, restarts + 1, total - restarts))
        cells = [int(each.sum()) for each in (*short.evidence, many.evidence[-1])]
        rows.append([what, *cells, f"{restarts} (below {100 * upper:.2g} %)", int(many.early.sum())])
    head = [f"evidence at {each:g}, of {jobs}" for each in BUDGETS]
    many_in = f"of {3 * setting.trials} in 600 rounds:"
    return table(
        ["noise", *head, f"{many_in} evidence at {BUDGETS[-1]:g}", "restarts at a cost of 30 s", "early"], rows
    )


def longest_runs(setting: Setting) -> list[str]:
    """Count healthy jobs with a run of slow rounds so long that nothing but its length tells it from a fault.

    By simulation, and from the law of the lengths, which a rule can only learn from runs that ended.
    """
    jobs, rounds = 3 * setting.trials, 3 * _ROUNDS
    longest = lasts = np.zeros((jobs, _SIZE), np.intp)
    kind = DEPENDENT["runs of 10 rounds on average, 10 to 50 % slow"]
    for readings in islice(kind(np.random.default_rng(1), jobs, _SIZE), rounds):
        lasts = np.where(readings > 0.05, lasts + 1, 0)  # between what chips differ by, and the least slow run
        longest = np.maximum(longest, lasts)
    n_runs = rounds * _SIZE / (200 + 10)  # one begins in 200 rounds of a device that is well
    rows = []
    for least in (30, 60, 90, 120):
        simulated = np.count_nonzero(longest.max(axis=1) >= least)
        by_law = -jobs * np.expm1(-n_runs * 0.9 ** (least - 1))
        rows.append([least, f"{ROUND_S * least / 3:.0f} s", simulated, f"{by_law:.0f}"])
    return table(["rounds", "lost at 50 %", f"of {jobs} jobs with such a run: simulated", "by the law"], rows)


def quiet_day(setting: Setting) -> list[str]:
    """Count what a healthy job of 32 devices prints in a day of 28,800 rounds, and the restarts that it asks for."""
    rows, jobs = [], setting.part(5, 20)
    kinds: dict[str, Job] = {**DISTURBED, "the same, phases on all devices together": _TOGETHER}
    for what, kind in kinds.items():
        found = play(kind(np.random.default_rng(3), jobs, _LARGE), 28_800, _COST_S)
        rows.append([what, jobs, f"{found.lines.mean():.1f}", int(found.lines.max()), int(found.restarts.sum())])
    return table(["a healthy day with", "jobs", "lines", "at most", "restarts"], rows)


def all_slower(setting: Setting) -> list[str]:
    """Slow down all devices of 32 for a while, in jobs with phases of all devices, bursts and outliers."""
    rows, jobs = [], setting.part(5)
    for ratio in (1.12, 1.2, 2.0):
        told: list[tuple[int, GroupSlower]] = []
        analysis, names = grouped((jobs, _LARGE))
        for number, readings in enumerate(islice(_TOGETHER(np.random.default_rng(4), jobs, _LARGE), _FAULT + 400)):
            slower = ratio if _FAULT <= number < _FAULT + 300 else 1.0
            analysis.update_arrays(names, slower * np.exp(readings).reshape(-1, 1), now_s=ROUND_S * number)
            told += [(number, each) for each in analysis.take_notices() if isinstance(each, GroupSlower)]
        begun = [(number, each.shift) for number, each in told if not each.shift.is_over]
        rounds = np.array([number - _FAULT + 1 for number, _ in begun])
        since = np.array([abs((shift.since_s or 0.0) / ROUND_S - _FAULT) for _, shift in begun])
        sizes = np.array([abs(shift.ratio / ratio - 1) for _, shift in begun])
        row = [f"{np.median(rounds):.0f}", rounds.max(), since.max(), f"{100 * np.median(sizes):.1f} %"]
        rows.append([f"{100 * (ratio - 1):.0f} %", jobs, len({each.group.first for _, each in told}), len(told), *row])
    head = ["jobs", "told", "lines in all", "rounds, median", "at most", "start off by at most", "size off by, median"]
    return table(["all devices slower by", *head], rows)


# -- ablation ----------------------------------------------------------------------------------------------------------

_MODULES = (excursions, groups, history)
_CONSTANTS = {
    "share of outliers": (excursions, "OUTLIERS"),
    "growth of the sizes": (excursions, "GROWTH"),
    "errors of the past": (excursions, "ERRORS"),
    "noises": (excursions, "NOISES"),
    "prior": (excursions, "PRIOR"),
    "link of the lengths": (excursions, "LINK"),
    "whole past": (history, "WHOLE"),
}
_OFF: dict[str, tuple[object, str, object]] = {
    "the cap of a round": (excursions, "OUTLIERS", 1e-30),
    "sizes: one alone": (excursions, "GROWTH", 1.0),
    "the errors of the past": (excursions, "ERRORS", 0.0),
    "learning from what ended": (excursions, "PRIOR", 1e9),
    "lengths apart": (excursions, "LINK", 1.0),
    "noise that lasts": (groups.Noise, "lasts", lambda self: np.ones_like(self.size)),
    "noise of a device's own": (
        groups.Noise,
        "of_devices",
        lambda self, _, grouping: grouping.per_device(self.variance()),
    ),
}


def ablation(setting: Setting) -> list[str]:
    """Halve and double each constant, and switch off each part: what that costs."""
    jobs = setting.part(10, 100)
    rows = [["as it is", *_costs(jobs)]]
    for what, (module, name) in _CONSTANTS.items():
        usual = getattr(module, name)
        for factor in (0.5, 2.0):
            value = min(1.0, usual * factor) if name == "LINK" else type(usual)(usual * factor)
            rows.append([f"{what} x {factor:g}", *_with(module, name, value, jobs)])
    rows += [[f"without {what}", *_with(*change, jobs)] for what, change in _OFF.items()]
    head = ["8 %, +20 %", "10 %, +20 %", "phases: 2x", "+20 %", "at times"]
    head += ["AR 0.9", "quarter", "heavy tails", "restarts, runs of 10", "lines of a day"]
    return table(["", *head], rows)


def _with(module: object, name: str, value: object, jobs: int) -> list[str]:
    """Return the costs with something else in the place of a constant or a part, wherever it was imported."""
    usual = getattr(module, name)
    holders = [each for each in _MODULES if getattr(each, name, None) is usual] + [module]
    for each in holders:
        setattr(each, name, value)
    try:
        return _costs(jobs)
    finally:
        for each in holders:
            setattr(each, name, usual)


def _costs(jobs: int) -> list[str]:
    power = [_power(jobs, deviation, 1.2, 24, 5)[1] <= _WITHIN for deviation in (0.08, 0.1)]
    blind = []
    for ratio, limit in ((2.0, 10), (1.2, 40)):
        outcome = play(slowed(day(np.random.default_rng(1), -(-jobs // 2), _SIZE), 700, ratio), 760, since=700)
        blind.append(np.maximum(outcome.found[:, -1] - 699, 1) <= limit)
    kind = INTERMITTENT["20 % slower in a fifth of the rounds, at random"]
    often = play(kind(np.random.default_rng(2), jobs, _SIZE), 136)
    suspects = np.minimum(often.found, often.at_times)[:, 0] != NEVER
    names = ("AR(1) of 2 %, correlation 0.9", "a quarter of the devices three times as noisy")
    kinds = [*(DEPENDENT[name] for name in names), INDEPENDENT["heavy tails, 8 %"]]
    healthy = [play(each(np.random.default_rng(77), jobs, _SIZE), _ROUNDS).evidence[0] for each in kinds]
    runs = DEPENDENT["runs of 10 rounds on average, 10 to 50 % slow"](np.random.default_rng(1), jobs, _SIZE)
    restarts = play(runs, 3 * _ROUNDS, _COST_S).restarts.mean()
    lines = play(day(np.random.default_rng(3), -(-jobs // 4), _LARGE), 2_400, _COST_S).lines.mean()
    return [*(share(each) for each in (*power, *blind, suspects, *healthy)), f"{restarts:.2f}", f"{lines:.1f}"]
