"""Slow-GPU detection on real GPU timings: false alarms, delays and misses, compared with other tools' rules.

``python -m benchmarks detection --data DIR [--plot FILE]``; ``DIR`` contains ``sgemm_v100.csv`` and
``resnet_v100.csv`` (see :mod:`benchmarks.timings` for their public source). What is simulated needs none, for instance
``--only optimum``.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from benchmarks.economics import days, intermittent
from benchmarks.evidence import (
    ablation,
    all_slower,
    at_times,
    budget,
    longest_runs,
    never_blind,
    noisy_steps,
    optimum,
    quiet_day,
    slow_ramps,
)
from benchmarks.hard_days import bounds, hard_days, own_checkpoints
from benchmarks.peers import RULES
from benchmarks.references import references as idle_and_cold
from benchmarks.setting import Setting
from benchmarks.tables import table
from benchmarks.timings import Seconds, device_names, healthy_series, long_run, series_job, windows
from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict

__all__ = ["main"]

_SIZES = (2, 3, 4, 8, 64, 256, 1024)
_LEARNING = 8
_JUDGED = 16
_WINDOW = 4  # samples that another tool's rule looks at
_WITHIN = 5


def main(argv: list[str]) -> int:
    """Run the benchmark, print its tables as Markdown and draw the plot; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks detection", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the timings")
    parser.add_argument("--quick", action="store_true", help="run a tenth of the trials")
    parser.add_argument(
        "--trials", type=int, metavar="N", help="jobs of most kinds (default: 1000, or 100 with --quick)"
    )
    parser.add_argument(
        "--largest",
        type=int,
        default=100_000,
        metavar="N",
        help="largest number of devices in a job (default: %(default)s)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the plot to FILE")
    parser.add_argument(
        "--only", metavar="NAME", help="run one section: " + ", ".join(section.__name__ for section in _SECTIONS)
    )
    options = parser.parse_args(argv)
    trials = options.trials or (100 if options.quick else 1000)
    without_timings = {section.__name__: section for section in _WITHOUT_TIMINGS}
    if options.only in without_timings:
        print("\n".join(without_timings[options.only](Setting([], [], [], trials, options.largest))))
        return 0
    if options.data is None:
        parser.error(f"--data is needed, but for --only {' and --only '.join(without_timings)}")
    sgemm, resnet = options.data / "sgemm_v100.csv", options.data / "resnet_v100.csv"
    for path in (sgemm, resnet):
        if not path.is_file():
            print(f"{path} is missing: --data must name the folder with the timings", file=sys.stderr)
            return 2
    setting = Setting(
        probe=healthy_series(sgemm, "perf_ms", _LEARNING + _JUDGED),
        probe_short=healthy_series(sgemm, "perf_ms", _WINDOW),
        steps=healthy_series(resnet, "iteration_ms", _WINDOW, np.inf),
        trials=trials,
        largest=options.largest,
    )
    print(f"Python {platform.python_version()}, NumPy {np.__version__}; {len(setting.probe)} GPUs with 24 SGEMM runs,")
    print(f"{len(setting.probe_short)} with 4; {len(setting.steps)} GPUs with 4 ResNet runs\n")
    for section in _SECTIONS:
        if options.only not in (None, section.__name__):
            continue
        begin_s = time.process_time()
        lines = "\n".join(section(setting))
        print(f"{lines}\n\n({section.__name__}: {time.process_time() - begin_s:.0f} s of CPU time)\n", flush=True)
    if options.plot is not None:
        plot(setting, options.plot)
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# Play a job


Found = list[tuple[int, Verdict]]


def play(seconds: Seconds, devices: tuple[DeviceId, ...] = (), **settings: object) -> Found:
    """Play a job's rounds; return each verdict with its round number, counted from 1."""
    names = devices or device_names(seconds.shape[1])
    analysis = SlowGPUAnalysis(**settings)  # type: ignore[arg-type]
    found: Found = []
    for number, one_round in enumerate(seconds, 1):
        found += [(number, verdict) for verdict in analysis.update_arrays(names, one_round, now_s=10.0 * number)]
    return found


def accused(found: Iterable[Verdict], names: tuple[DeviceId, ...], *, restart: bool = False) -> set[int]:
    """Return the rows of the accused devices; a verdict against a node counts for each of its devices."""
    rows: set[int] = set()
    for verdict in found:
        if not restart or verdict.action == "restart":
            rows |= {n for n, (host, gpu) in enumerate(names) if host == verdict.host and verdict.gpu in (None, gpu)}
    return rows


def _restarts(jobs: Iterable[Found]) -> int:
    """Count the jobs with a restart verdict."""
    return sum(any(verdict.action == "restart" for _, verdict in found) for found in jobs)


def bound(count: int, trials: int) -> str:
    """Format a proportion with its exact 95 % upper bound (Clopper and Pearson)."""
    upper = 1.0 if count == trials else float(beta.ppf(0.95, count + 1, trials - count))
    return f"{count} of {trials} (below {100 * upper:.2g} %)"


def percentage(count: int, trials: int) -> str:
    """Format a proportion as a percentage."""
    return f"{100 * count / trials:.1f} %"


# ---------------------------------------------------------------------------------------------------------------------
# Healthy jobs and steps


def healthy_jobs(setting: Setting) -> list[str]:
    """Count verdicts in healthy jobs with 16 judged rounds, and in long runs with spikes."""
    rows = []
    for size in setting.sizes(*_SIZES):
        rng = np.random.default_rng(size)
        jobs = [play(series_job(rng, setting.probe, size, _LEARNING + _JUDGED)) for _ in range(setting.healthy)]
        rows.append([size, bound(_restarts(jobs), len(jobs)), bound(sum(map(bool, jobs)), len(jobs))])
    lines = table(["devices", "healthy jobs with a restart verdict", "with any verdict"], rows)
    rng = np.random.default_rng(640)
    spiked = [play(long_run(rng, setting.probe, 64, 1000, 5, 0.3)) for _ in range(setting.long_jobs)]
    restarts = sum(verdict.action == "restart" for found in spiked for _, verdict in found)
    return [
        *lines,
        "",
        f"Long runs, {setting.long_jobs * 64_000:,} GPU-rounds, 30 % of samples hit by a spike: "
        f"{restarts} restart verdicts, {sum(map(len, spiked))} verdicts in total.",
    ]


def step_job(
    setting: Setting, rng: np.random.Generator, size: int, rows: NDArray[np.intp], ratio: float
) -> tuple[Seconds, int]:
    """Draw a job in which some devices slow down in a random round after learning."""
    seconds = series_job(rng, setting.probe, size, _LEARNING + _JUDGED)
    onset = int(rng.integers(_LEARNING, _LEARNING + _JUDGED - _WITHIN - 2))
    seconds[onset:, rows] *= ratio
    return seconds, onset


def steps(setting: Setting) -> list[str]:
    """Slow down one device: count how often it is found within five rounds, and measure the delays."""
    rows = []
    for size in setting.sizes(*_SIZES):
        trials = setting.trials if size < 256 else setting.part(2)
        for ratio in (1.03, 1.05, 1.1, 1.2, 2.0):
            rng = np.random.default_rng(size)
            delays, wrong, restarts = [], 0, 0
            for _ in range(trials):
                row = int(rng.integers(size))
                seconds, onset = step_job(setting, rng, size, np.array([row]), ratio)
                found, names = play(seconds), device_names(size)
                hits = [
                    number - onset
                    for number, verdict in found
                    if number > onset and (verdict.host, verdict.gpu) == names[row]
                ]
                delays.append(min(hits, default=99))
                restarts += row in accused((verdict for _, verdict in found), names, restart=True)
                wrong += bool(accused((verdict for _, verdict in found), names) - {row})
            found_in_time = np.array(delays) <= _WITHIN
            typical = f"{np.median(delays):.0f} (worst {max((d for d in delays if d < 99), default=0)})"
            rows.append(
                [
                    size,
                    f"{100 * (ratio - 1):.0f} %",
                    percentage(int(found_in_time.sum()), trials),
                    typical,
                    percentage(restarts, trials),
                    wrong,
                ]
            )
    return table(
        ["devices", "step", f"found within {_WITHIN} rounds", "median delay", "restart verdict", "wrong"], rows
    )


def together(setting: Setting) -> list[str]:
    """Slow down many devices by 10 % at the same time."""
    rows = []
    for size, share in (
        (4, 0.25),
        (8, 0.25),
        (8, 0.45),
        (64, 0.25),
        (64, 0.45),
        (256, 0.25),
        (256, 0.45),
        (1024, 0.25),
        (1024, 0.45),
    ):
        if not setting.sizes(size):
            continue
        rng = np.random.default_rng(size)
        trials, count = setting.part(5, 10), int(share * size)
        all_found = wrong = 0
        for _ in range(trials):
            slow = rng.choice(size, count, replace=False)
            seconds, _ = step_job(setting, rng, size, slow, 1.1)
            flagged = accused((verdict for _, verdict in play(seconds)), device_names(size))
            all_found += set(slow.tolist()) <= flagged
            wrong += bool(flagged - set(slow.tolist()))
        rows.append([size, f"{100 * share:.0f} %", percentage(all_found, trials), bound(wrong, trials)])
    return table(["devices", "slowing by 10 %", "all of them found", "jobs with a healthy device accused"], rows)


def ramp(setting: Setting) -> list[str]:
    """Slow down one device gradually, to 10 % over 12 rounds."""
    rows = []
    for size in setting.sizes(4, 8, 64, 256, 1024):
        rng = np.random.default_rng(size)
        reached = []
        trials = setting.part(5, 10)
        for _ in range(trials):
            row = int(rng.integers(size))
            seconds = series_job(rng, setting.probe, size, _LEARNING + _JUDGED)
            seconds[_LEARNING:, row] *= (1 + 0.1 * np.minimum(np.arange(1, _JUDGED + 1), 12) / 12)[:, None]
            hits = [
                number for number, verdict in play(seconds) if (verdict.host, verdict.gpu) == device_names(size)[row]
            ]
            reached.append(0.1 * (min(hits) - _LEARNING) / 12 if hits else 1.0)
        in_time = [percentage(int((np.array(reached) <= share).sum()), trials) for share in (0.0584, 0.0667)]
        rows.append([size, *in_time, f"{100 * np.median(reached):.1f} %", f"{100 * max(reached):.1f} %"])
    head = ["devices", "found by the reading at 5.8 %", "by the first at 6 % or more (6.7 %)", "median", "worst"]
    return table(head, rows)


# ---------------------------------------------------------------------------------------------------------------------
# Born slow


def born_slow(setting: Setting) -> list[str]:
    """Find devices that are slow from the start: one cross-section with four samples per device."""
    rows = []
    for name, pool, healthy in (
        ("probe", setting.probe_short, setting.trials),
        ("noisy steps", setting.steps, 5 * setting.trials),
    ):
        for size in setting.sizes(2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024):
            trials = setting.trials if size < 256 else setting.part(5, 20)
            rng = np.random.default_rng(size)
            checks = healthy if size < 256 else setting.trials
            false = sum(bool(_check(rng, pool, size, 0, 1.0)[1]) for _ in range(checks))
            row: list[object] = [name, size, bound(false, checks)]
            for ratio in (1.1, 1.2, 2.5):
                for count in dict.fromkeys((1, max(1, size // 4))):
                    found = [_check(rng, pool, size, count, ratio)[0] for _ in range(min(trials, max(20, trials // 2)))]
                    row.append(f"{100 * np.mean(found):.1f} %")
                if size < 8:
                    row.append("")
            rows.append(row)
    head = [f"{ratio} %, {count}" for ratio in (10, 20, 150) for count in ("one", "a quarter")]
    return table(["readings", "devices", "false restart verdicts", *head], rows)


def _check(rng: np.random.Generator, pool: list[Seconds], size: int, count: int, ratio: float) -> tuple[float, int]:
    """Return the share of slow devices that get a restart verdict, and the number of healthy devices that do."""
    seconds, names = windows(rng, pool, size, _WINDOW), device_names(size)
    slow = set(rng.choice(size, count, replace=False).tolist())
    seconds[list(slow)] *= ratio
    verdicts = SlowGPUAnalysis().check(dict(zip(names, seconds.tolist(), strict=True)))
    flagged = accused(verdicts, names, restart=True)
    return len(flagged & slow) / max(1, count), len(flagged - slow)


# ---------------------------------------------------------------------------------------------------------------------
# Layouts, disturbances


def layouts(setting: Setting) -> list[str]:
    """Mix GPU models, use pipeline stages, and slow down whole nodes."""
    trials = setting.part(5, 10)
    rows = []
    for what, factors in (
        ("two models, 1.5x apart", (1.0, 1.5)),
        ("two models, 2x apart", (1.0, 2.0)),
        ("stages 1 : 1.4 : 2", (1.0, 1.4, 2.0)),
    ):
        for labelled in (True, False):
            rng = np.random.default_rng(3)
            jobs = []
            for _ in range(trials):
                seconds = series_job(rng, setting.probe, 48, _LEARNING + _JUDGED)
                part = np.arange(48) * len(factors) // 48
                seconds *= np.array(factors)[part][:, None]
                names = device_names(48)
                jobs.append(
                    play(seconds, names, groups=dict(zip(names, part.tolist(), strict=True)) if labelled else None)
                )
            rows.append(
                [what, "labelled" if labelled else "no labels", bound(_restarts(jobs), trials), sum(map(bool, jobs))]
            )
    lines = table(["layout, 48 devices", "groups", "healthy jobs with a restart verdict", "with any verdict"], rows)
    rng, one = np.random.default_rng(4), 0
    for _ in range(trials):
        node = int(rng.integers(16))
        seconds, _ = step_job(setting, rng, 64, np.arange(4 * node, 4 * node + 4), 1.2)
        found = [(verdict.host, verdict.gpu) for _, verdict in play(seconds)]
        one += found == [(f"node{node}", None)]
    return [
        *lines,
        "",
        f"A whole node of 16 slows by 20 %: one verdict, against the node, in {percentage(one, trials)} of jobs.",
    ]


def disturbances(setting: Setting) -> list[str]:
    """Disturb healthy jobs with bursts from a neighbour, a common slowdown and a common drift."""
    trials = setting.part(2, 10)
    names = device_names(64)

    def burst(rng: np.random.Generator, seconds: Seconds, row: int) -> None:
        seconds[rng.integers(6) :: 6, row] *= 1.5  # every 60 s with rounds of 10 s

    def common(rng: np.random.Generator, seconds: Seconds, row: int) -> None:
        del row
        seconds[rng.integers(_LEARNING, 20) :] *= 1.3

    def drift(rng: np.random.Generator, seconds: Seconds, row: int) -> None:
        del row
        seconds *= (1 + rng.uniform(0, 0.02) * np.arange(len(seconds)))[:, None, None]

    rows = []
    for what, disturb, rounds in (
        ("one device hit by a burst every sixth round", burst, 120),
        ("all devices 30 % slower", common, 24),
        ("all drifting by up to 2 % a round", drift, 24),
    ):
        rng = np.random.default_rng(5)
        calm, disturbed, against = [], [], 0
        for _ in range(trials):
            row = int(rng.integers(64))
            seconds = long_run(rng, setting.probe, 64, rounds, 1, 0.0)
            calm.append(play(seconds))
            disturb(rng, seconds, row)
            disturbed.append(play(seconds))
            accused_now, accused_before = (accused((v for _, v in found[-1]), names) for found in (disturbed, calm))
            against += row in accused_now - accused_before
        counts = (bound(_restarts(disturbed), trials), _restarts(calm), against, *_jobs_with_verdicts(disturbed, calm))
        rows.append([f"{what}, {rounds} rounds", *counts])
    head = ["jobs with a restart verdict", "the same jobs undisturbed", "disturbed device accused"]
    return table(["disturbance, 64 devices", *head, "with any verdict", "the same jobs undisturbed"], rows)


def _jobs_with_verdicts(*groups: Iterable[Found]) -> list[int]:
    return [sum(map(bool, jobs)) for jobs in groups]


def virtual(setting: Setting) -> list[str]:
    """Simulate virtual devices on a noisy CPU machine: 3 repeats per round, min_slowdown 1.5, no history."""
    rows = []
    for size, nodes in ((2, 1), (3, 3), (4, 2), (8, 4)):
        names = device_names(size, size // nodes)
        rng = np.random.default_rng(size)
        delays, wrong = [], 0
        for _ in range(setting.trials):
            row = int(rng.integers(size))
            seconds = _virtual_job(rng, size, 12)
            seconds[:, row] *= rng.uniform(4, 30)
            found = [
                (number, verdict)
                for number, verdict in play(seconds, names, min_slowdown=1.5)
                if verdict.action == "restart"
            ]
            hits = [number for number, verdict in found if row in accused([verdict], names)]
            delays.append(min(hits, default=99))
            wrong += bool(accused((verdict for _, verdict in found), names) - {row})
        healthy = [play(_virtual_job(rng, size, 120), names, min_slowdown=1.5) for _ in range(setting.healthy)]
        false = _restarts(healthy)
        in_time = [int((np.array(delays) <= limit).sum()) for limit in (4, 5, 12)]
        rows.append(
            [
                f"{size} on {nodes}",
                *(percentage(count, setting.trials) for count in in_time),
                wrong,
                bound(false, setting.healthy),
            ]
        )
    head = [
        "devices",
        "4-30x found within 4 rounds",
        "within 5",
        "within 12",
        "wrong",
        "healthy jobs of 120 rounds with a restart verdict",
    ]
    return table(head, rows)


def _virtual_job(rng: np.random.Generator, size: int, rounds: int) -> Seconds:
    """Draw a job with 5-20 % scatter, offsets up to 15 %, and spikes of 1.5-2x on single readings and whole rounds."""
    shape = (rounds, size, 3)
    seconds = 0.05 * (1 + rng.uniform(0, 0.15, (1, size, 1))) * np.exp(rng.normal(0, rng.uniform(0.05, 0.2), shape))
    rate = rng.uniform(0, 0.1)
    hit = (rng.random(shape) < rate) | (rng.random((rounds, size, 1)) < rate / 3)
    return np.where(hit, seconds * rng.uniform(1.5, 2, shape), seconds)


def economics(setting: Setting) -> list[str]:
    """Compare what rules for restarts lose, over generated days of incidents and phases."""
    few = setting.part(25)
    tables = (days(setting.part(5)), intermittent(), hard_days(few), own_checkpoints(few), bounds(few))
    return [line for lines in tables for line in (*lines, "")]


def references(setting: Setting) -> list[str]:
    """Play jobs whose devices read something else for a while, though nothing is wrong."""
    return idle_and_cold(setting.part(5))


# ---------------------------------------------------------------------------------------------------------------------
# Speed, peers, plot


def speed(setting: Setting) -> list[str]:
    """Measure the CPU time of one round on one core, during and after the learning of baselines."""
    rows = []
    sizes = dict.fromkeys(min(size, setting.largest) for size in (1_000, 10_000, 100_000))
    for size, repeats, case in product(sizes, (1, 3), _CASES):
        runs = [_round_times(size, repeats, case, 20) for _ in range(_SPEED_RUNS)]
        expect_ms, *rounds_ms = (min(times) for times in zip(*runs, strict=True))
        unexpected_ms = min(_round_times(size, repeats, case, 1, expected=False)[1] for _ in range(_SPEED_RUNS))
        shown = (expect_ms, unexpected_ms, rounds_ms[0], max(rounds_ms[1:7]), rounds_ms[7], max(rounds_ms[8:]))
        rows.append([f"{size:,}", repeats, case, *(f"{each:.1f} ms" for each in shown)])
    head = [
        "`expect`",
        "round 1 without it",
        "round 1",
        "slowest of 2-7",
        "round 8",
        "slowest of 9-20",
    ]
    return table(["devices", "repeats", "method", *head], rows)


_CASES = ("`update`", "`update_arrays`", "`update_arrays`, 5 % spikes")
_SPEED_RUNS = 3  # the fastest counts, since the machine may be busy


def _round_times(size: int, repeats: int, case: str, count: int, *, expected: bool = True) -> list[float]:
    """Return the milliseconds of ``expect`` and of the first rounds."""
    rng = np.random.default_rng(7)
    names = device_names(size, 8)
    seconds = 0.01 * np.exp(rng.normal(0, 0.002, (3, size, repeats)))
    if "spikes" in case:
        seconds[rng.random(seconds.shape) < 0.05] *= 1.5
    rounds: list[Any] = list(seconds)
    analysis = SlowGPUAnalysis()
    take: Callable[[Any], object] = partial(analysis.update_arrays, names)
    if "arrays" not in case:
        rounds, take = [dict(zip(names, seconds[0].tolist(), strict=True))], analysis.update
    expect_ms = _ms(partial(analysis.expect, names)) if expected else 0.0
    return [expect_ms, *(_ms(partial(take, rounds[number % len(rounds)])) for number in range(count))]


def _ms(call: Callable[[], object]) -> float:
    begin_s = time.process_time()  # one thread does all the work, and the machine may be busy
    call()
    return 1000 * (time.process_time() - begin_s)


def _flags(setting: Setting, size: int, ratio: float, trials: int) -> dict[str, tuple[float, float]]:
    """Return, for each rule, the share of jobs with a false flag and the share of slow devices found in five rounds."""
    names = device_names(size)
    false, hits = dict.fromkeys(("laggard", *RULES), 0), dict.fromkeys(("laggard", *RULES), 0)
    rng = np.random.default_rng(size)
    for _ in range(trials):
        row = int(rng.integers(size))
        slowed, onset = step_job(setting, rng, size, np.array([row]), ratio)
        healthy = series_job(rng, setting.probe, size, _LEARNING + _JUDGED)
        false["laggard"] += any(verdict.action == "restart" for _, verdict in play(healthy))
        in_time = [verdict for number, verdict in play(slowed) if onset < number <= onset + _WITHIN]
        hits["laggard"] += row in accused(in_time, names)
        for name, rule in RULES.items():
            ends = range(_LEARNING, _LEARNING + _JUDGED + 1)
            false[name] += any(rule(healthy[end - _WINDOW : end, :, 0].T).any() for end in ends)
            hits[name] += any(
                rule(slowed[end - _WINDOW : end, :, 0].T)[row] for end in range(onset + 1, onset + _WITHIN + 1)
            )
    return {name: (false[name] / trials, hits[name] / trials) for name in false}


def rules(setting: Setting) -> list[str]:
    """Compare all rules on the same jobs: healthy jobs with a flag, and steps found within five rounds."""
    trials = setting.part(10, 20)
    lines = []
    for size in setting.sizes(4, 64, 256):
        by_ratio = {ratio: _flags(setting, size, ratio, trials) for ratio in (1.05, 1.1, 1.2, 2.0)}
        rows = [
            [
                name,
                f"{100 * by_ratio[1.05][name][0]:.0f} %",
                *(f"{100 * by_ratio[ratio][name][1]:.0f} %" for ratio in by_ratio),
            ]
            for name in ("laggard", *RULES)
        ]
        lines += [
            "",
            *table(
                [
                    f"N = {size}",
                    "healthy jobs with a flag",
                    *(f"{100 * (ratio - 1):.0f} % found" for ratio in by_ratio),
                ],
                rows,
            ),
        ]
    return lines[1:]


def plot(setting: Setting, path: Path) -> None:
    """Plot the share found against the slowdown, with each rule's false alarms in its label."""
    from matplotlib.figure import Figure  # imported here, so that the tables do not need it

    ratios = (1.01, 1.02, 1.03, 1.05, 1.08, 1.1, 1.15, 1.2, 1.33, 1.5, 2.0, 2.5)
    trials = setting.part(20, 20)
    by_ratio = [_flags(setting, 64, ratio, trials) for ratio in ratios]
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in ("laggard", *RULES):
        false = 100 * np.mean([flags[name][0] for flags in by_ratio])
        style = {"linewidth": 3, "color": "black"} if name == "laggard" else {"alpha": 0.8}
        found = [100 * flags[name][1] for flags in by_ratio]
        axes.plot([100 * (ratio - 1) for ratio in ratios], found, marker="o", label=f"{name}: {false:.0f} %", **style)
    axes.set(xscale="log", xlabel="slowdown of one GPU among 64 (%)", ylabel="found within five rounds (%)")
    axes.set_xticks([1, 2, 3, 5, 10, 20, 50, 100], ["1", "2", "3", "5", "10", "20", "50", "100"])
    figure.legend(title="healthy jobs with a flag", fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=120)


_WITHOUT_TIMINGS = (
    optimum,
    slow_ramps,
    never_blind,
    budget,
    longest_runs,
    at_times,
    all_slower,
    quiet_day,
    ablation,
    economics,
    references,
)
_SECTIONS = (
    healthy_jobs,
    steps,
    together,
    ramp,
    born_slow,
    layouts,
    disturbances,
    virtual,
    noisy_steps,
    *_WITHOUT_TIMINGS,
    speed,
    rules,
)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
