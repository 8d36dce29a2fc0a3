"""Device checks of GPUs in separate processes, on stand-ins for CuPy and for the driver's NVML."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.collectors.device_check import ALL_DEVICES
from laggard.collectors.supervised_check import check_devices_here
from laggard.detectors.judging.diagnosis import diagnose
from tests.fake_cupy.kernels import host_compiler
from tests.real_gpus import real_gpus

ROOT = Path(__file__).parents[2]
# Without the large probes, so that a check is short.
SHORT = f"others_bytes={(80 << 30) - (90 << 20)}"

GpuMachine = Callable[..., dict[str, str]]


@pytest.fixture
def gpu_machine(tmp_path: Path) -> GpuMachine:
    """Return an environment in which ``import cupy`` finds GPUs, each described by its arguments."""
    if host_compiler() is None:
        pytest.skip("there is no C++ compiler")

    def make(*boards: str) -> dict[str, str]:
        made = ", ".join(f"Board({board})" for board in boards)
        (tmp_path / "cupy.py").write_text(f"from tests.fake_cupy.machine import Board, install\ninstall({made})\n")
        path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
        return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {
            "PYTHONPATH": path
        }

    return make


def test_a_lost_and_a_stuck_gpu_are_reported_and_the_good_one_is_checked(gpu_machine: GpuMachine) -> None:
    environ = gpu_machine("lost=True", SHORT, "stuck=True")

    # Only the stuck one has a deadline that may come too soon: the others are the first of a process.
    found = list(check_devices_here(environ, first_answer_s=60, next_answer_s=0.5))

    assert [(check.gpu, check.trouble) for check in found] == [
        ("0", "CUDARuntimeError: cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable"),
        ("1", ""),
        ("2", "no answer within 0.5 s"),
    ]
    assert list(found[1].figures) == ["clock", "triad_20MiB", "chase_l2", "launch"]


def test_an_idle_clock_is_warmed_up_and_causes_are_found_by_bus_address(
    gpu_machine: GpuMachine, fake_nvml: Path
) -> None:
    part = f'name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", {SHORT}'
    environ = gpu_machine(SHORT, SHORT, part) | {"LD_LIBRARY_PATH": str(fake_nvml)}
    environ |= {"FAKE_NVML_IDLE": "0", "FAKE_NVML_HOT": "1", "FAKE_NVML_PID": str(os.getpid())}

    idle, hot, part_of_one = check_devices_here(environ, first_answer_s=60, next_answer_s=60)

    assert [check.warmed for check in (idle, hot)] == [True, False]
    assert [check.uuid for check in (idle, hot)] == ["GPU-0", "GPU-1"]
    assert part_of_one.uuid.startswith("GPU-10111213-")  # its own, as CuPy tells it
    assert idle.model == hot.model == "NVIDIA H100 80GB HBM3, 80 GiB, 700 W"
    assert str(idle.cause).startswith(f"a neighbour: process {os.getpid()} ")
    assert str(hot.cause).startswith("cooling: the clock was held back by heat for")


@pytest.mark.gpu
def test_every_real_gpu_of_this_machine_is_checked() -> None:
    names = [device.gpu for device in real_gpus()]

    found = list(check_devices_here(os.environ, first_answer_s=240, next_answer_s=60))

    assert [check.gpu for check in found] == names
    assert [(check.trouble, check.wrong) for check in found] == [("", {})] * len(names)
    assert all(check.figures["gemm_fp32"][0] > 0 for check in found)
    conditions = {
        diagnosis.condition for diagnosis in diagnose({("here", check.gpu): check for check in found}, {}).values()
    }
    assert conditions == {"ok"}


def test_a_library_that_is_missing_says_nothing_about_a_gpu(gpu_machine: GpuMachine, tmp_path: Path) -> None:
    environ = gpu_machine(SHORT)
    broken = "def getDeviceProperties(ordinal):\n    raise OSError('libnvrtc.so.12: cannot open shared object file')\n"
    with (tmp_path / "cupy.py").open("a") as module:
        module.write(f"import cupy.cuda.runtime\n{broken}cupy.cuda.runtime.getDeviceProperties = getDeviceProperties\n")

    (found,) = check_devices_here(environ, first_answer_s=60)

    assert (found.trouble, found.failure) == ("", "OSError: libnvrtc.so.12: cannot open shared object file")


def test_a_cupy_that_cannot_be_imported_says_nothing_about_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('CuPy failed to load libcudart.so.12')\n")

    (found,) = check_devices_here({**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})

    why = "the check ended with exit code 1: RuntimeError: CuPy failed to load libcudart.so.12"
    assert (found.gpu, found.trouble, found.failure) == (ALL_DEVICES, "", f"the devices cannot be listed: {why}")
