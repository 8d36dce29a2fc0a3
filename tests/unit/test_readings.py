"""A mapping of readings becomes an array for each probe, whatever its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.readings import ReadingsByProbe, arrays_by_probe, as_array

NAN = math.nan


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ({}, [np.zeros((0, 0))]),
        ({("a", "0"): []}, [np.zeros((1, 0))]),
        ({("a", "0"): {}}, []),
        ({("a", "0"): [1, 2], ("b", "0"): [3]}, [[[1, 2], [3, NAN]]]),
        ({("a", "0"): {"x": [1]}, ("b", "0"): {"y": [2]}}, [[[1], [NAN]], [[NAN], [2]]]),
        ({("a", "0"): {"x": [1]}, ("b", "0"): {"x": [2], "y": [3]}}, [[[1], [2]], [[NAN], [3]]]),
        ({("a", "0"): {"x": [1], "y": [2]}, ("b", "0"): {"y": [3], "x": [4]}}, [[[1], [4]], [[2], [3]]]),
    ],
)
def test_what_is_missing_is_nan(readings: ReadingsByProbe, expected: list[object]) -> None:
    found = arrays_by_probe(readings)
    assert len(found) == len(expected)
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, np.asarray(wanted, np.float64))


@pytest.mark.parametrize("odd", [{"gemm": [1.0, 2.0], "copy": [3.0, 4.0]}, {"gemm": [1.0], "triad": [3.0]}])
def test_one_odd_device_among_thousands_keeps_its_place(odd: dict[str, list[float]]) -> None:
    readings: dict[DeviceId, Mapping[str, Sequence[float]]] = {
        (f"node{number}", "0"): {"gemm": [1.0, 2.0], "triad": [3.0, float(number)]} for number in range(4500)
    }
    readings["node4000", "0"] = odd
    probes = dict(zip(dict.fromkeys(["gemm", "triad", *odd]), arrays_by_probe(readings), strict=True))
    for probe, values in odd.items():
        np.testing.assert_array_equal(probes[probe][4000, : len(values)], values)
    np.testing.assert_array_equal(probes["triad"][:4000, 1], np.arange(4000))


def test_each_device_has_a_row_of_its_repeats() -> None:
    np.testing.assert_array_equal(as_array([[1.0, 2.0], [3.0]]), [[1, 2], [3, NAN]])
