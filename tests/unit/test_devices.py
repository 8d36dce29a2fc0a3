"""The rows of devices, and how many are on each host."""

from __future__ import annotations

from collections import Counter

import pytest

from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.statistics.devices import Devices

NAMES = (("b", "0"), ("a", "0"), ("b", "1"))


def test_devices_have_rows_and_hosts() -> None:
    devices = Devices(NAMES)

    assert devices.hosts.tolist() == [0, 1, 0]
    assert devices.number_on == Counter({"b": 2, "a": 1})
    assert devices.rows_of(NAMES).tolist() == [0, 1, 2]
    assert devices.rows_of((("b", "1"), ("b", "0"))).tolist() == [2, 0]
    with pytest.raises(KeyError):
        devices.rows_of((("c", "0"),))


def test_devices_with_one_label_are_a_group_and_without_labels_all_are() -> None:
    assert Devices(NAMES, {("a", "0"): 1}).codes.tolist() == [0, 1, 0]
    assert Devices(NAMES).codes.tolist() == [0, 0, 0]


def test_an_analysis_expects_each_device_once_in_the_order_in_which_they_came() -> None:
    analysis = SlowGPUAnalysis()
    analysis.expect(NAMES)
    analysis.expect([("c", "0"), ("a", "0"), ("c", "0")])
    assert list(analysis.devices) == [*NAMES, ("c", "0")]
    analysis.forget(["b"])
    assert list(analysis.devices) == [("a", "0"), ("c", "0")]
