"""What must hold of the slow-GPU detector for any readings."""

from __future__ import annotations

import math
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.statistics.history import RESTART, SELF, History
from laggard.detectors.statistics.shared_runs import SharedRuns

Seconds = NDArray[np.float64]
Reported = set[tuple[int, str, str | None, str, str]]


def naive_module() -> Any:
    path = Path(__file__).parents[1] / "naive_detector.py"
    spec = util.spec_from_file_location("naive_detector", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NaiveDetector = naive_module().NaiveDetector


@st.composite
def jobs(draw: st.DrawFn, rounds: int = 20) -> Seconds:
    """Jobs ``(rounds, devices, repeats)`` of mixed noise, spikes, and now and then a slow device."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    devices, repeats = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    noise = draw(st.sampled_from([0.0005, 0.01, 0.1]))
    seconds = np.exp(rng.normal(0, noise, (rounds, devices, repeats)) + rng.normal(0, 0.02, (devices, 1)))
    seconds[rng.random(seconds.shape) < draw(st.sampled_from([0.0, 0.1]))] *= 2
    if draw(st.booleans()):
        seconds[draw(st.integers(0, rounds - 1)) :, draw(st.integers(0, devices - 1))] *= draw(
            st.sampled_from([1.05, 1.2, 4.0])
        )
    return seconds


def names(devices: int) -> list[DeviceId]:
    return [(f"node{number // 2}", str(number % 2)) for number in range(devices)]


def readings(devices: list[DeviceId], one_round: Seconds) -> dict[DeviceId, list[float]]:
    return dict(zip(devices, one_round.tolist(), strict=True))


def reported(number: int, verdicts: list[Verdict]) -> Reported:
    return {(number, v.host, v.gpu, v.severity, v.action) for v in verdicts}


def play(devices: list[DeviceId], seconds: Seconds) -> Reported:
    analysis = SlowGPUAnalysis()
    found: Reported = set()
    for number, one_round in enumerate(seconds):
        found |= reported(number, analysis.update(readings(devices, one_round)))
    return found


@given(jobs(), st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_permuting_the_devices_permutes_the_verdicts(seconds: Seconds, random: Any) -> None:
    devices = names(seconds.shape[1])
    order = list(range(len(devices)))
    random.shuffle(order)
    assert play([devices[n] for n in order], seconds[:, order]) == play(devices, seconds)


@given(jobs(), st.sampled_from([0.25, 1024.0]))
@settings(max_examples=10, deadline=None)
def test_scaling_all_times_changes_nothing(seconds: Seconds, factor: float) -> None:
    devices = names(seconds.shape[1])
    assert {each[:3] for each in play(devices, seconds * factor)} == {each[:3] for each in play(devices, seconds)}


@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.floats(1.02, 1.5), st.floats(1.0, 4.0))
@settings(max_examples=12, deadline=None)
def test_more_slowdown_never_means_later(seed: int, size: int, ratio: float, more: float) -> None:
    rng = np.random.default_rng(seed)
    seconds = np.exp(rng.normal(0, 0.002, (24, size, 2)) + rng.normal(0, 0.017, (size, 1)))
    delays = []
    for slowdown in (ratio, ratio * more):
        slowed = seconds.copy()
        slowed[12:, 0] *= slowdown
        delays.append(
            min((n for n, host, gpu, *_ in play(names(size), slowed) if (host, gpu) == ("node0", "0")), default=99)
        )
    assert delays[1] <= delays[0]


@given(jobs(), st.sampled_from([math.nan, 0.0, -1.0, math.inf]))
@settings(max_examples=10, deadline=None)
def test_a_bad_repeat_is_as_good_as_none(seconds: Seconds, bad: float) -> None:
    devices = names(seconds.shape[1])
    spoiled = np.concatenate([seconds, np.full((*seconds.shape[:2], 1), bad)], axis=2)
    assert play(devices, spoiled) == play(devices, seconds)


@given(jobs(), st.integers(0, 2**32 - 1), st.sampled_from([1.05, 1.5]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_fast_detector_agrees_with_the_obvious_slow_one(
    seconds: Seconds, seed: int, min_slowdown: float, split: bool
) -> None:
    rng = np.random.default_rng(seed)
    devices = names(seconds.shape[1])
    labels = {device: "ab"[split and number % 2] for number, device in enumerate(devices)}
    seconds[rng.random(seconds.shape[:2]) < 0.03] = np.nan
    analysis, naive = SlowGPUAnalysis(min_slowdown=min_slowdown, groups=labels), NaiveDetector(labels, min_slowdown)
    analysis.expect(devices)
    for one_round in seconds:
        verdicts = analysis.update(readings(devices, one_round))
        naive.update(readings(devices, one_round))
        evidence = History.from_state(analysis.to_state()["history"]).evidence
        expected = [
            [[naive.memory[d].evidence[test, level] for d in devices] for level in ("report", "restart")]
            for test in ("self", "peer")
        ]
        np.testing.assert_allclose(evidence, expected, rtol=2e-4)
        if verdicts:
            break


@given(size=st.integers(2, 200), lengths=st.lists(st.integers(1, 255), min_size=1))
def test_however_often_one_device_is_slow_its_group_learns_no_length_and_one_run_from_it(
    size: int, lengths: list[int]
) -> None:
    shared, group, n_new = SharedRuns(np.array([size])), np.zeros(1, np.intp), 0
    for length in lengths:
        counted = shared.add(SELF, RESTART, group, np.array([size - 1]), np.array([length]))
        assert not len(counted.shared)
        n_new += len(counted.new)
    assert n_new == 1
