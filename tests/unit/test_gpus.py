"""What must hold for every GPU: checked on the stand-in for CuPy, and on a real GPU if there is one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.device import GpuDevice
from laggard.collectors.group import CollectorGroup, DeviceCollector
from laggard.collectors.probes import PROBE_NAMES, Probe, probes_of
from laggard.kvstore.client.connection import Endpoint
from tests.fake_cupy.kernels import host_compiler
from tests.fake_cupy.machine import Board, cupy_on
from tests.local import in_job
from tests.real_gpus import real_gpus

# A GPU that is alone has no peer, and a consumer board next to no double precision.
NOT_EVERYWHERE = {"gemm_fp64"}


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[GpuDevice]:
    if request.param == "real":
        yield real_gpus()[0]
        return
    if host_compiler() is None:
        pytest.skip("there is no C++ compiler")
    with cupy_on(Board()):
        yield GpuDevice("0", 0)


@pytest.fixture(scope="module")
def probes(device: GpuDevice) -> dict[str, Probe]:
    return {probe.name: probe for probe in probes_of(device)}


def test_it_has_a_name_and_an_identity(device: GpuDevice) -> None:
    assert " GiB" in device.model
    assert device.uuid.startswith(("GPU-", "MIG-"))


def test_every_probe_has_a_reading_of_milliseconds_and_computes_correctly(probes: dict[str, Probe]) -> None:
    assert set(PROBE_NAMES) - probes.keys() <= NOT_EVERYWHERE
    for name, probe in probes.items():
        probe.prepare()
        probe.seconds()  # the first one may load the kernel
        assert 1e-5 < probe.seconds() < 0.1, name
        assert 0 < probe.figure(probe.seconds()) < math.inf, name
        assert probe.wrong_results() == 0, name


class CurrentDevice(CollectorGroup):
    """A user's own test, which says on which device CuPy would allocate."""

    metric_name = "current-device"
    repeats = 1

    def collector_test(self, args: Any) -> float:
        import cupy

        del args
        return float(cupy.cuda.Device().id)


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def devices(request: pytest.FixtureRequest) -> Iterator[list[GpuDevice]]:
    if request.param == "real":
        yield real_gpus()
        return
    with cupy_on(Board(), Board()):
        yield [GpuDevice(str(ordinal), ordinal) for ordinal in (0, 1)]


def test_a_users_own_test_runs_on_the_device_that_it_tests(devices: list[GpuDevice], tmp_path: Path) -> None:
    with in_job(tmp_path, Endpoint("127.0.0.1", 1, "job", "secret")):
        collectors = [DeviceCollector(CurrentDevice(), device, time.monotonic) for device in devices]
    assert [collector.collect().values for collector in collectors] == [(float(d.ordinal),) for d in devices]
