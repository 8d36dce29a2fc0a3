"""The signs of the map in ``laggard top``."""

from __future__ import annotations

import pytest

from laggard.resilience.views.map import Colouring
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
