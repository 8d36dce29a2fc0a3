"""The real ``laggard doctor`` on virtual devices: healthy, slow and stuck ones."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.checkups import checkups_here
from collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES

DEADLINE_S = 120.0

THRASH = """
import sys
from pathlib import Path
from collectors.device import VirtualDevice
from collectors.probes.virtual import Gemm
device = VirtualDevice("1", Path(sys.argv[1]))
probe = Gemm(device)
print("busy", flush=True)
while True:
    probe.seconds()
"""


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "resilience.cli", "doctor", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def virtual_devices(count: int, directory: Path) -> dict[str, str]:
    one_core_each = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {VIRTUAL_DEVICES: str(count), VIRTUAL_DEVICE_DIR: str(directory), **one_core_each}


@pytest.fixture
def busy_device(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Four devices, on the second of which two other processes compute."""
    environ = virtual_devices(4, tmp_path)
    thrashers = [
        subprocess.Popen([sys.executable, "-c", THRASH, tmp_path], env=os.environ | environ, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for thrasher in thrashers:
        assert thrasher.stdout is not None
        assert thrasher.stdout.readline() == b"busy\n"
    yield environ
    for thrasher in thrashers:
        thrasher.kill()
        thrasher.communicate()


def found_in(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {device["gpu"]: device for device in json.loads(done.stdout)["devices"]}


def test_without_a_gpu_it_says_so_and_checks_the_processor(tmp_path: Path) -> None:
    done = run_doctor("--past", str(tmp_path / "past.json"), CUDA_VISIBLE_DEVICES="")

    assert "no GPU here" in done.stderr
    assert "gemm_fp32     Gflop/s" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("of 2 devices ok (virtual)")
    assert done.returncode == int("slow" in done.stdout)  # this machine's other work may make one slow


def test_a_busy_device_is_slow_and_the_exit_code_says_so(busy_device: dict[str, str], tmp_path: Path) -> None:
    done = run_doctor("--json", "--past", str(tmp_path / "past.json"), **busy_device)

    found = found_in(done)
    assert found["1"]["condition"] == "slow"
    assert done.returncode == 1
    assert found["1"]["seconds"].keys() == {"clock", "gemm_fp32", "gemm_fp64", "triad", "chase_memory", "launch"}


def test_a_stuck_device_is_told_and_the_others_are_checked(tmp_path: Path) -> None:
    with (tmp_path / "device-1.clock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # a kernel that never ends
        found = list(checkups_here(os.environ | virtual_devices(3, tmp_path), first_answer_s=60, next_answer_s=8))

    assert [(checkup.gpu, checkup.trouble) for checkup in found] == [
        ("0", ""),
        ("1", "no answer within 8 s"),
        ("2", ""),
    ]


def test_a_checkup_that_dies_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "missing"  # the device has no place for its clock

    found = list(checkups_here(os.environ | virtual_devices(1, directory)))

    assert [checkup.trouble for checkup in found] == ["its checkup ended with exit code 1"]


def test_each_visit_is_remembered_and_a_past_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    past, where = tmp_path / "past.json", virtual_devices(1, tmp_path)
    for _ in range(2):
        assert run_doctor("--past", str(past), **where).returncode == 0
    (devices,) = json.loads(past.read_text()).values()
    assert [len(visits) for visits in devices["virtual-localhost-0"].values()] == [2] * 6
    assert past.stat().st_mode & 0o077 == 0

    past.write_text("{}")
    done = run_doctor("--past", str(past), **where)
    assert done.returncode == 1
    assert f"{past}, the devices' past, cannot be read" in done.stderr
    assert "--forget begins it anew" in done.stderr
    assert run_doctor("--forget", "--past", str(past), **where).returncode == 0
