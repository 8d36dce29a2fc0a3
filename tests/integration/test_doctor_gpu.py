"""Checkups of GPUs in processes of their own, on stand-ins for CuPy and for the driver's NVML."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.checkups import checkups_here
from tests.fake_cupy.kernels import host_compiler

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="there is no C++ compiler")

ROOT = Path(__file__).parents[2]
# So that a checkup is short: without the large probes.
SHORT = f"others_bytes={(80 << 30) - (90 << 20)}"

GpuMachine = Callable[..., dict[str, str]]


@pytest.fixture
def gpu_machine(tmp_path: Path) -> GpuMachine:
    """Return an environment in which ``import cupy`` finds GPUs, each told by its arguments."""

    def make(*boards: str) -> dict[str, str]:
        made = ", ".join(f"Board({board})" for board in boards)
        (tmp_path / "cupy.py").write_text(f"from tests.fake_cupy.machine import Board, install\ninstall({made})\n")
        path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
        return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {
            "PYTHONPATH": path
        }

    return make


def test_a_lost_and_a_stuck_gpu_are_told_and_the_good_one_is_checked(gpu_machine: GpuMachine) -> None:
    environ = gpu_machine("lost=True", SHORT, "stuck=True")

    # Only the stuck one has a deadline that may come too soon: the others are the first of a process.
    found = list(checkups_here(environ, first_answer_s=60, next_answer_s=0.5))

    assert [(checkup.gpu, checkup.trouble) for checkup in found] == [
        ("0", "its checkup ended with exit code 1"),
        ("1", ""),
        ("2", "no answer within 0.5 s"),
    ]
    assert list(found[1].figures) == ["clock", "triad_20MiB", "chase_l2", "launch"]


def test_an_idle_clock_is_warmed_up_and_the_driver_tells_causes_by_the_place_on_the_bus(
    gpu_machine: GpuMachine, fake_nvml: Path
) -> None:
    part = f'name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", {SHORT}'
    environ = gpu_machine(SHORT, SHORT, part) | {"LD_LIBRARY_PATH": str(fake_nvml)}
    environ |= {"FAKE_NVML_IDLE": "0", "FAKE_NVML_HOT": "1"}

    idle, hot, part_of_one = checkups_here(environ, first_answer_s=60, next_answer_s=60)

    assert [checkup.warmed for checkup in (idle, hot)] == [True, False]
    assert [checkup.uuid for checkup in (idle, hot)] == ["GPU-0", "GPU-1"]
    assert part_of_one.uuid.startswith("GPU-10111213-")  # its own, as CuPy tells it
    assert idle.model == hot.model == "NVIDIA H100 80GB HBM3, 80 GiB, 700 W"
    assert idle.cause.startswith("a neighbour: process 4321")
    assert hot.cause.startswith("cooling: the clock was held back by heat for")
