"""Each probe of a virtual device runs, and a wrong result is seen; the kernels for GPUs compile."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.device import VirtualDevice
from laggard.collectors.device_check import DeviceCheck, check_device
from laggard.collectors.probes import probes_of
from laggard.collectors.probes.cuda_kernels import KERNELS
from laggard.collectors.probes.exact_pattern import pattern, wrong_rows
from laggard.collectors.probes.virtual import Clock, Gemm
from laggard.records import plain, record_of

SIZE = 24


@pytest.fixture
def device(tmp_path: Path) -> VirtualDevice:
    return VirtualDevice("0", tmp_path, "node1")


def test_every_probe_has_a_reading_and_computes_correctly(device: VirtualDevice) -> None:
    probes = probes_of(device)

    assert len({probe.name for probe in probes}) == len(probes) == 6
    for probe in probes:
        assert probe.seconds() > 0
        assert probe.wrong_results() == 0
        assert probe.operations or probe.bytes_moved


def test_a_rate_falls_and_a_time_rises_with_the_reading(device: VirtualDevice) -> None:
    for probe in probes_of(device):
        assert (probe.figure(2.0) < probe.figure(1.0)) is probe.is_rate


@pytest.mark.parametrize(
    ("name", "floor_s", "figure", "operations", "bytes_moved"),
    [
        ("clock", 2e-3, 30.0, 60_000, 0),  # additions at 30 million a second
        ("gemm_fp32", 10e-3, 90.6, 2 * 768**3, 0),  # Gflop/s
        ("gemm_fp64", 1.25e-3, 90.6, 2 * 384**3, 0),
        ("triad", 2e-3, 50.3, 2 * 2 * 2**21, 2 * 24 * 2**21),  # GB/s
        ("chase_memory", 2e-3, 1.91, 0, 2**23),  # ns a read
        ("launch", 0.2e-3, 0.1, 2000, 0),  # us each
    ],
)
def test_a_probe_reads_what_its_documentation_says_at_its_floor(
    device: VirtualDevice, name: str, floor_s: float, figure: float, operations: float, bytes_moved: float
) -> None:
    probe = next(each for each in probes_of(device) if each.name == name)

    assert probe.figure(floor_s) == pytest.approx(figure, rel=2e-3)
    assert (probe.operations, probe.bytes_moved) == (operations, bytes_moved)


def test_a_product_reports_its_rate_in_billions_of_operations_per_second(device: VirtualDevice) -> None:
    assert Gemm(device, size=100).figure(1.0) == pytest.approx(2 * 100**3 / 1e9)


def test_the_clock_takes_each_of_its_steps(device: VirtualDevice) -> None:
    assert Clock(device).kernel() == sum(range(60_000))


@given(
    row=st.integers(0, SIZE - 1),
    column=st.integers(0, SIZE - 1),
    error=st.one_of(st.sampled_from([1.0, -1.0, np.nan, np.inf]), st.floats(1, 1e6)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_one_wrong_number_in_a_product_is_seen(row: int, column: int, error: float, dtype: type) -> None:
    left, right = pattern(SIZE, 1), pattern(SIZE, 2)
    product = left.astype(dtype) @ right.astype(dtype)
    assert wrong_rows(left, right, product) == 0

    product[row, column] += error

    assert wrong_rows(left, right, product) == 1


def test_a_pattern_has_its_three_values_equally_often_and_no_two_seeds_alike() -> None:
    matrix = pattern(300, 1)

    values, counts = np.unique(matrix, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert (abs(counts / 90_000 - 1 / 3) < 0.01).all()
    assert (matrix != pattern(300, 2)).mean() > 0.6


def test_single_precision_holds_every_sum_of_the_largest_product_exactly() -> None:
    n = 2048
    left, right = np.ones((n, n), np.int8), np.ones((n, n), np.int8)
    product = np.full((n, n), n, np.float32)

    assert wrong_rows(left, right, product) == 0
    product[0, 0] += 1
    assert wrong_rows(left, right, product) == 1


def test_a_device_check_has_all_readings_and_survives_json(device: VirtualDevice) -> None:
    check = check_device(device, repeats=2)

    assert {len(seconds) for seconds in check.seconds.values()} == {2}
    assert check.figures.keys() == check.seconds.keys()
    assert check.wrong == {}
    assert record_of(DeviceCheck, json.loads(json.dumps(plain(check)))) == check


def test_the_kernels_for_gpus_compile(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("there is no CUDA compiler")
    source = tmp_path / "kernels.cu"
    source.write_text(KERNELS)

    subprocess.run([compiler, "-ptx", "-Werror=all-warnings", "-o", tmp_path / "kernels.ptx", source], check=True)
