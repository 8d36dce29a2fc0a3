"""Why a machine with NVIDIA GPUs on its bus has none that can be used."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.cuda_errors import is_of_the_device
from laggard.collectors.missing_gpus import MissingGPUs, why_missing
from tests.fake_cupy.machine import Board, CUDARuntimeError, cupy_on


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with two GPUs and a network card of NVIDIA's, and a graphics card of somebody else's."""
    on_bus = {"3b": ("0x10de", "0x030200"), "5e": ("0x10de", "0x030000"), "86": ("0x10de", "0x020700")}
    for slot, (vendor, kind) in {**on_bus, "af": ("0x1002", "0x030000")}.items():
        device = tmp_path / "sys/bus/pci/devices" / f"0000:{slot}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    return tmp_path


@pytest.fixture
def driver(machine: Path) -> Path:
    """The same, with its driver loaded and its device files there."""
    (machine / "proc/driver/nvidia").mkdir(parents=True)
    (machine / "proc/driver/nvidia/version").write_text("NVRM version: 570\n")
    (machine / "dev").mkdir()
    (machine / "dev/nvidia0").touch()
    return machine


def test_a_machine_without_gpus_of_nvidias_misses_none(tmp_path: Path) -> None:
    assert why_missing({}, tmp_path) is None


def test_a_process_that_asks_for_no_gpu_misses_none(machine: Path) -> None:
    assert why_missing({"CUDA_VISIBLE_DEVICES": ""}, machine) is None


def test_a_driver_that_is_not_loaded_is_a_fault_of_the_machine(machine: Path) -> None:
    assert why_missing({}, machine) == MissingGPUs(
        "2 NVIDIA GPUs on the bus, but their driver is not loaded", is_fault=True
    )


def test_a_container_without_device_files_says_nothing_about_the_gpus(driver: Path) -> None:
    (driver / "dev/nvidia0").unlink()
    found = why_missing({}, driver)
    assert found is not None
    assert "this process may use none: there is no /dev/nvidia0" in found.reason
    assert not found.is_fault


def test_a_missing_cupy_says_nothing_about_the_gpus(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_cupy(name: str, *rest: Any, **named: Any) -> Any:
        if name == "cupy":
            raise ImportError("No module named 'cupy'")
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_cupy)
    found = why_missing({}, driver)
    assert found is not None
    assert found.reason.endswith("(No module named 'cupy'): install laggard's extra cuda12 or cuda13")
    assert not found.is_fault


@pytest.mark.parametrize(("status", "is_fault"), [(35, False), (100, True), (999, True)])
def test_a_driver_that_shows_no_gpu_is_a_fault_unless_it_is_too_old(
    driver: Path, monkeypatch: pytest.MonkeyPatch, status: int, *, is_fault: bool
) -> None:
    def refuse() -> int:
        error = CUDARuntimeError(100)
        error.status = status
        raise error

    with cupy_on(Board()):
        import cupy

        monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", refuse)
        found = why_missing({}, driver)
    assert found is not None
    assert "their driver shows none: cudaErrorNoDevice" in found.reason
    assert found.is_fault == is_fault


def test_only_some_errors_of_cuda_speak_of_the_device() -> None:
    assert is_of_the_device(CUDARuntimeError(46))
    assert not is_of_the_device(CUDARuntimeError(100))
    assert not is_of_the_device(OSError(46, "an errno of the same number"))


@pytest.mark.parametrize(
    ("status", "is_broken"),
    [
        (1, False),  # cudaErrorInvalidValue
        (35, False),  # cudaErrorInsufficientDriver
        (46, True),  # cudaErrorDevicesUnavailable
        (214, True),  # cudaErrorECCUncorrectable
        (220, True),  # cudaErrorNvlinkUncorrectable
        (700, False),  # cudaErrorIllegalAddress
        (702, True),  # cudaErrorLaunchTimeout
        (714, True),  # cudaErrorHardwareStackError
        (715, True),  # cudaErrorIllegalInstruction
        (719, True),  # cudaErrorLaunchFailure
        (721, True),  # cudaErrorContained
        (802, True),  # cudaErrorSystemNotReady
        (999, True),  # cudaErrorUnknown
    ],
)
def test_a_code_of_cudas_header_speaks_of_a_broken_device_or_not(status: int, *, is_broken: bool) -> None:
    assert is_of_the_device(CUDARuntimeError(status)) == is_broken
