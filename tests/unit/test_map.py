"""The signs of the map in ``laggard top``."""

from __future__ import annotations

import pytest

from laggard.resilience.views.map import Colouring, against_peers, colourings, description
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceState

POWER = DEVICE_READINGS[1]


@pytest.mark.parametrize(
    ("value", "sign"), [(100, "0"), (119, "0"), (121, "1"), (189, "4"), (200, "5"), (281, "9"), (300, "9"), (999, "9")]
)
def test_a_reading_is_a_digit_for_its_tenth_of_the_scale(value: float, sign: str) -> None:
    device = DeviceState("n1", "0", "H100", "in use", {POWER.name: value})
    assert Colouring(POWER, low=100, high=300).sign_of(device) == sign


def test_a_scale_without_a_width_has_one_digit() -> None:
    device = DeviceState("n1", "0", "H100", "in use", {POWER.name: 5.0})
    assert Colouring(POWER, low=5, high=5).sign_of(device) == "0"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.5, "50 % faster than its peers"),
        (0.9949, "1 % faster than its peers"),
        (0.9951, "as fast as its peers"),
        (1.0049, "as fast as its peers"),
        (1.0051, "1 % slower than its peers"),
        (2.99, "199 % slower than its peers"),
        (3.0, "3.0 times as slow as its peers"),
    ],
)
def test_a_difference_that_rounds_to_no_percent_is_none_and_from_three_times_on_it_is_a_factor(
    ratio: float, text: str
) -> None:
    assert against_peers(ratio) == text


def test_a_device_is_described_by_the_reading_that_colours_it_or_by_its_probe_time() -> None:
    device = DeviceState("n1", "0", "H100", "in use", {POWER.name: 312.4}, probe_s=0.01234, peer_ratio=1.2)
    assert description(device, Colouring(POWER)) == f"n1 gpu 0: 312 {POWER.unit}, 20 % slower than its peers"
    assert description(device, Colouring()) == "n1 gpu 0: 12.34 ms, 20 % slower than its peers"
    idle = DeviceState("n1", "0", "H100", "reserve", {})
    assert description(idle, Colouring()) == "n1 gpu 0: no reading, reserve"


def test_the_map_can_be_coloured_by_what_some_device_has_and_percentages_go_to_100() -> None:
    percent = next(each for each in DEVICE_READINGS if each.unit == "%")
    probed = DeviceState("n1", "0", "H100", "in use", {}, peer_ratio=1.0)
    read = [DeviceState("n1", gpu, "H100", "in use", {POWER.name: watts}) for gpu, watts in (("1", 90.0), ("2", 310.0))]
    busy = DeviceState("n2", "0", "H100", "in use", {percent.name: 40.0})
    scales = [(each.reading, each.low, each.high) for each in colourings([probed, *read, busy])]
    assert sorted(scales, key=str) == sorted([(None, 0, 100), (POWER, 90, 310), (percent, 0, 100)], key=str)
    assert [each.reading for each in colourings(read)] == [POWER]
    assert [each.reading for each in colourings([])] == [None]


@pytest.mark.parametrize(
    ("signs", "special"), [("0@", {}), ("X/", {"X": "found slow", "/": "not in use"}), ("?", {"?": "no reading"})]
)
def test_only_the_special_signs_that_are_on_the_map_are_explained(signs: str, special: dict[str, str]) -> None:
    found = Colouring(POWER, low=100, high=1300).meanings(signs)
    assert found == {"0": f"100 {POWER.unit} to", "9": f"1,300 {POWER.unit}"} | special
