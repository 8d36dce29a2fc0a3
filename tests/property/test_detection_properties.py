"""What must hold of the slow-GPU detector for any readings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.statistics.excursions import Tails
from laggard.detectors.statistics.history import History

Seconds = NDArray[np.float64]
ZERO = np.zeros(1, np.intp), np.zeros(1, np.intp)  # a clock and a group
Reported = set[tuple[int, str, str | None, str, str]]


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


@given(jobs(), jobs(), st.sampled_from([1.05, 1.5]))
@settings(max_examples=10, deadline=None)
def test_a_group_has_the_evidence_that_it_would_have_alone(one: Seconds, other: Seconds, min_slowdown: float) -> None:
    width = max(one.shape[2], other.shape[2])
    padded = [
        np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[2])), constant_values=np.nan) for each in (one, other)
    ]
    both = np.concatenate(padded, axis=1)
    devices = names(both.shape[1])
    labels = {device: number < one.shape[1] for number, device in enumerate(devices)}
    together, alone = (SlowGPUAnalysis(groups=labels, min_slowdown=min_slowdown) for _ in range(2))
    for one_round in both:
        together.update_arrays(tuple(devices), one_round)
        alone.update_arrays(tuple(devices[: one.shape[1]]), one_round[: one.shape[1]])
        here, there = (History.from_state(each.to_state()["history"]) for each in (together, alone))
        if here.found.any() or there.found.any():
            break  # of two groups each has half of the budget
        np.testing.assert_allclose(here.evidence[:, : one.shape[1]], there.evidence, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(here.number[:, : one.shape[1]], there.number)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_every_excursion_of_a_group_gets_a_share_of_its_own_and_they_sum_to_the_budget(
    began: list[tuple[int, int]],
) -> None:
    tails, shares = Tails.empty(3), np.zeros(3)
    for clock, group in began:
        [number] = tails.number((np.array([clock]), np.array([group])))
        shares[group] += 1 / (4 * number * (number + 1.0))
    assert (shares <= 1).all()
    together = Tails.empty(3)
    clocks, groups = np.array(began, np.intp).reshape(-1, 2).T
    numbers = together.number((clocks, groups))
    assert numbers.tolist() == [began.count(each) for each in began]  # which leaves more of the budget


@given(st.floats(1, 200), st.floats(0, 40), st.lists(st.floats(9.3, 300), max_size=40))
def test_what_is_larger_is_more_surprising_and_what_ended_makes_it_less_so(
    evidence: float, more: float, ended: list[float]
) -> None:
    tails, step = Tails.empty(1), np.array([np.log(100)], np.float32)

    def surprise(height: float) -> float:
        return float(tails.surprise(ZERO, np.array([height], np.float32), step)[0])

    before = surprise(evidence)
    assert surprise(evidence + more) >= before
    assert before <= max(0.0, evidence - 2 * float(step[0])) + 1e-3  # no step is worth more than it says
    for peak in ended:
        tails.learn(ZERO, np.array([peak], np.float32), step)
    assert surprise(evidence + more) >= surprise(evidence)
    if ended and min(ended) > 128 * float(step[0]):
        assert surprise(evidence) <= before
