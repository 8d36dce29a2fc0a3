"""A slow device is found whichever round its slowness begins in, also if that is in the middle of its baseline."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis

ONSETS = range(17)
NOISE, CHIPS = 0.005, 0.01


def restarted(devices: int, per_node: int, slow: int, slowdown: float, onset: int) -> set[tuple[str, str | None]]:
    """Return whom the restart verdicts accuse if the last ``slow`` devices slow down in round ``onset``."""
    rng = np.random.default_rng(onset)
    names = tuple((f"n{number // per_node}", str(number % per_node)) for number in range(devices))
    chips = np.clip(rng.normal(0, CHIPS, devices), -0.02, 0.02)
    analysis = SlowGPUAnalysis()
    accused = set()
    for number in range(onset + 20):
        readings = chips + rng.normal(0, NOISE, devices)
        readings[devices - slow :] += np.log(slowdown) * (number >= onset)
        verdicts = analysis.update_arrays(names, np.exp(readings)[:, None])
        accused |= {(verdict.host, verdict.gpu) for verdict in verdicts if verdict.action == "restart"}
    return accused


@pytest.mark.parametrize(
    ("devices", "slowdown"),
    [(4, 1.3), (128, 1.2), (1024, 10)],
)
def test_a_slow_device_is_found_whenever_it_becomes_slow(devices: int, slowdown: float) -> None:
    found = {onset: restarted(devices, 1, 1, slowdown, onset) for onset in ONSETS[:: 1 if devices < 100 else 4]}
    assert set(map(frozenset, found.values())) == {frozenset({(f"n{devices - 1}", "0")})}


@pytest.mark.parametrize(("devices", "slowdown"), [(2, 1.3), (16, 1.1)])
def test_a_small_slowdown_is_found_if_it_begins_in_the_second_half_of_the_baseline_or_later(
    devices: int, slowdown: float
) -> None:
    found = {onset: restarted(devices, 1, 1, slowdown, onset) for onset in ONSETS[4:]}
    assert found == {onset: {(f"n{devices - 1}", "0")} for onset in ONSETS[4:]}


# At 10 %, a step in the very middle is too small beside what half of the group being slow adds to its noise.
@pytest.mark.parametrize(("slowdown", "first"), [(1.1, 5), (1.3, 4)])
def test_a_slow_node_of_two_is_found_if_it_becomes_slow_in_the_second_half_of_the_baseline_or_later(
    slowdown: float, first: int
) -> None:
    found = {onset: restarted(8, 4, 4, slowdown, onset) for onset in ONSETS[first:]}
    assert {host for accused in found.values() for host, _ in accused} == {"n1"}
    assert all(("n1", None) in accused for accused in found.values())
