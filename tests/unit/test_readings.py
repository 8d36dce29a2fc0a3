"""A mapping of readings becomes an array, whatever its shape."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laggard.detectors.statistics.device_index import Readings, as_array

NAN = math.nan
MANY = {(f"node{number}", "0"): {"gemm": [1.0, 2.0], "triad": [3.0, float(number)]} for number in range(4500)}


@pytest.mark.parametrize(
    ("readings", "probes", "expected"),
    [
        ({}, ("probe",), np.zeros((0, 1, 0))),
        ({("a", "0"): []}, ("probe",), np.zeros((1, 1, 0))),
        ({("a", "0"): {}}, (), np.zeros((1, 0, 0))),
        ({("a", "0"): [1, 2], ("b", "0"): [3]}, ("probe",), [[[1, 2]], [[3, NAN]]]),
        ({("a", "0"): {"x": [1]}, ("b", "0"): {"y": [2]}}, ("x", "y"), [[[1], [NAN]], [[NAN], [2]]]),
        ({("a", "0"): {"x": [1]}, ("b", "0"): {"x": [2], "y": [3]}}, ("x", "y"), [[[1], [NAN]], [[2], [3]]]),
        ({("a", "0"): {"x": [1], "y": [2]}, ("b", "0"): {"y": [3], "x": [4]}}, ("x", "y"), [[[1], [2]], [[4], [3]]]),
    ],
)
def test_what_is_missing_is_nan(readings: Readings, probes: tuple[str, ...], expected: object) -> None:
    devices, found, seconds = as_array(readings)
    assert devices == tuple(readings)
    assert found == probes
    np.testing.assert_array_equal(seconds, np.asarray(expected, np.float64))


def test_thousands_of_devices_are_read_as_a_few_are() -> None:
    devices, probes, seconds = as_array(MANY)
    assert (len(devices), probes, seconds.shape) == (4500, ("gemm", "triad"), (4500, 2, 2))
    np.testing.assert_array_equal(seconds[:, 1, 1], np.arange(4500))


@pytest.mark.parametrize("odd", [{"gemm": [1.0, 2.0], "copy": [3.0, 4.0]}, {"gemm": [1.0], "triad": [3.0]}])
def test_one_odd_device_among_thousands_keeps_its_place(odd: dict[str, list[float]]) -> None:
    devices, probes, seconds = as_array(MANY | {("node4000", "0"): odd})
    row = seconds[devices.index(("node4000", "0"))]
    for probe, values in odd.items():
        np.testing.assert_array_equal(row[probes.index(probe), : len(values)], values)
    np.testing.assert_array_equal(seconds[0, :2], [[1, 2], [3, 0]])
