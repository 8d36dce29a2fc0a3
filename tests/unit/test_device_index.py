"""The rows of devices, and readings as arrays."""

from __future__ import annotations

from collections import Counter

import pytest

from laggard.detectors.statistics.device_index import DeviceIndex

DEVICES = (("b", "0"), ("a", "0"), ("b", "1"))


def test_devices_have_rows_and_hosts() -> None:
    index = DeviceIndex(DEVICES)

    assert len(index) == 3
    assert index.hosts.tolist() == [0, 1, 0]
    assert index.devices_of == Counter({"b": 2, "a": 1})
    assert index.rows_outside(["b"]).tolist() == [1]
    assert index.rows_of(DEVICES).tolist() == [0, 1, 2]
    assert index.rows_of((("b", "1"), ("b", "0"))).tolist() == [2, 0]
    with pytest.raises(KeyError):
        index.rows_of((("c", "0"),))


def test_an_index_grows_by_what_is_new_each_once() -> None:
    index = DeviceIndex(DEVICES)

    assert index.extended(DEVICES[:2]) is index
    assert index.extended([("c", "0"), ("a", "0"), ("c", "0")]).devices == (*DEVICES, ("c", "0"))
    assert DeviceIndex().extended([("c", "0"), ("c", "0")]).devices == (("c", "0"),)
