"""Four virtual devices on a noisy CPU machine, no history: the slow one is found, healthy jobs are not disturbed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict

TWO_BY_TWO: tuple[DeviceId, ...] = (("node0", "0"), ("node0", "1"), ("node1", "0"), ("node1", "1"))


def noisy_seconds(rng: np.random.Generator, devices: int, rounds: int, repeats: int = 3) -> NDArray[np.float64]:
    """Readings ``(rounds, devices, repeats)``: 5-20 % scatter, offsets up to 15 %, spikes of readings and of rounds."""
    shape = (rounds, devices, repeats)
    offsets = 1 + rng.uniform(0, 0.15, (1, devices, 1))
    seconds = 0.05 * offsets * np.exp(rng.normal(0, rng.uniform(0.05, 0.2), shape))
    rate = rng.uniform(0, 0.1)
    hit = (rng.random(shape) < rate) | (rng.random((rounds, devices, 1)) < rate / 3)
    return np.where(hit, seconds * rng.uniform(1.5, 2, shape), seconds)


def run(
    analysis: SlowGPUAnalysis, devices: tuple[DeviceId, ...], seconds: NDArray[np.float64]
) -> list[tuple[int, Verdict]]:
    """Play the rounds; return each verdict with the number of its round, from 1."""
    found = []
    for number, round_seconds in enumerate(seconds, 1):
        readings = {device: list(repeats) for device, repeats in zip(devices, round_seconds, strict=True)}
        found += [(number, verdict) for verdict in analysis.update(readings, now_s=1e9 + number)]
    return found


def restarts(found: list[tuple[int, Verdict]]) -> list[tuple[int, str, str | None]]:
    return [(number, verdict.host, verdict.gpu) for number, verdict in found if verdict.action == "restart"]


@pytest.mark.parametrize("devices", [TWO_BY_TWO, TWO_BY_TWO[:2]], ids=["N=4", "N=2"])
def test_a_device_born_several_times_slower_gets_one_restart_verdict_within_five_rounds(
    devices: tuple[DeviceId, ...],
) -> None:
    delays = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        slow = int(rng.integers(len(devices)))
        seconds = noisy_seconds(rng, len(devices), 12)
        seconds[:, slow] *= rng.uniform(4, 30)
        found = restarts(run(SlowGPUAnalysis(min_slowdown=1.5), devices, seconds))
        assert {(host, gpu) for _, host, gpu in found} == {devices[slow]}
        delays.append(found[0][0])
    assert np.mean(np.array(delays) <= 5) >= 0.95  # a noisy round now and then costs two more


def test_a_slow_device_is_still_found_after_a_node_left_and_another_joined() -> None:
    rng = np.random.default_rng(7)
    analysis = SlowGPUAnalysis(min_slowdown=1.5)
    assert not restarts(run(analysis, TWO_BY_TWO, noisy_seconds(rng, 4, 12)))
    analysis.forget(["node1"])
    later = (*TWO_BY_TWO[:2], ("node2", "0"), ("node2", "1"))
    assert not restarts(run(analysis, later, noisy_seconds(rng, 4, 12)))
    seconds = noisy_seconds(rng, 4, 8)
    seconds[:, 0] *= 5
    assert [found[1:] for found in restarts(run(analysis, later, seconds))] == [("node0", "0")]


def test_healthy_jobs_get_no_restart_verdict() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        seconds = noisy_seconds(rng, 4, 60)
        assert not restarts(run(SlowGPUAnalysis(min_slowdown=1.5), TWO_BY_TWO, seconds))
