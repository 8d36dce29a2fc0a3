"""In a job, a device runs the matrix product in each round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probes.base import Probe
from laggard.collectors.probes.virtual import Gemm
from laggard.collectors.probing import Probing, WarmUp
from laggard.collectors.symptoms import DeviceStatus
from laggard.detectors import SlowGPUDetector


@pytest.fixture
def device(tmp_path: Path) -> VirtualDevice:
    return VirtualDevice("0", tmp_path, "node1")


def test_a_round_is_the_product_alone(device: VirtualDevice) -> None:
    probing = Probing(device, max_intrusion=1.0)
    assert probing.product.name == "gemm_fp32"
    assert probing.seconds() > 0
    assert probing.product.wrong_results() == 0
    assert probing.tags() == {}


def test_expensive_probes_run_rarely(device: VirtualDevice) -> None:
    probing = Probing(device, max_intrusion=0.01)
    probing.end_round([0.015, 0.5, 0.03])
    assert probing.intrusion.stride(interval_s=3.0) == 2  # 45 ms and a quarter more, of 30
    assert probing.intrusion.stride(interval_s=30.0) == 1


def test_a_wrong_product_is_reported_with_its_round(device: VirtualDevice) -> None:
    probing = Probing(device, max_intrusion=1.0)
    for wrong, tags in ((0.0, {}), (1.0, {"wrong": "wrong results of the probe gemm_fp32: 1"}), (0.0, {})):
        seconds = probing.seconds()
        assert isinstance(probing.product, Gemm)
        probing.product._product[5, 7] += wrong
        probing.end_round([seconds])
        assert probing.tags() == tags


class Driver:
    """A driver that reports a busy, hot device."""

    utilisation_percent: int | None = 87

    def utilisation(self) -> int | None:
        return self.utilisation_percent

    def status(self, *, bus_in_use: bool = False) -> DeviceStatus:
        del bus_in_use
        return DeviceStatus(0.0, {"temperature_c": 63.4})

    def is_idle(self) -> bool:
        return False


def test_how_busy_the_device_was_before_a_round_and_how_hot_it_is_are_in_its_tags(device: VirtualDevice) -> None:
    driver = Driver()
    reader: Any = driver
    probing = Probing(device, 1.0, lambda _: reader)
    seconds = [probing.seconds()]
    driver.utilisation_percent = 100  # by the probe itself
    probing.end_round([*seconds, probing.seconds()])
    assert probing.tags() == {"utilisation": "87", "temperature": "63"}

    driver.utilisation_percent = None
    probing.end_round([probing.seconds()])
    assert probing.tags() == {"temperature": "63"}


def test_a_test_with_another_kernel_is_not_checked(device: VirtualDevice) -> None:
    probing = Probing(device, max_intrusion=1.0)
    probing.end_round([0.001])
    assert probing.tags() == {}


class Spinning(Probe):
    """A kernel that only counts how often it ran."""

    name = "spinning"
    runs = 0

    def kernel(self) -> None:
        self.runs += 1


def low_for(spinning: Spinning, runs: int) -> Iterator[bool]:
    while True:
        yield spinning.runs < runs


def test_a_device_that_idles_is_run_until_its_clock_has_risen(device: VirtualDevice) -> None:
    spinning = Spinning(device)
    answers = low_for(spinning, 3)
    warm_up = WarmUp(lambda: next(answers))

    assert warm_up(spinning)
    assert spinning.runs == 3
    assert not warm_up(spinning)
    assert spinning.runs == 3


def test_a_clock_that_stays_low_is_warmed_up_only_once(device: VirtualDevice) -> None:
    spinning = Spinning(device)
    warm_up = WarmUp(lambda: True, 0.01)

    assert warm_up(spinning)
    runs = spinning.runs
    assert runs > 0
    assert not warm_up(spinning)
    assert spinning.runs == runs


def test_a_detector_names_an_invalid_setting() -> None:
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"max_intrusion is {share}: it is a share of the time"):
            SlowGPUDetector(max_intrusion=share)
