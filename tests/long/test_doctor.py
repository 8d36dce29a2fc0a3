"""The real ``laggard doctor`` on a device that others use."""

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

from laggard.collectors.supervised_check import check_devices_here
from tests.integration.test_doctor import run_doctor, virtual_devices

THRASH = """
import sys
from pathlib import Path
from laggard.collectors.device import VirtualDevice
from laggard.collectors.probes.virtual import Gemm
device = VirtualDevice("1", Path(sys.argv[1]))
probe = Gemm(device)
print("busy", flush=True)
while True:
    probe.seconds()
"""


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


def test_a_busy_device_is_slow_and_the_exit_code_says_so(busy_device: dict[str, str], tmp_path: Path) -> None:
    done = run_doctor("--json", "--past", str(tmp_path / "past.json"), **busy_device)

    found = found_in(done)
    assert found["1"]["condition"] == "slow"
    assert done.returncode == 1
    assert found["1"]["seconds"].keys() == {"clock", "gemm_fp32", "gemm_fp64", "triad", "chase_memory", "launch"}


def test_a_stuck_device_is_reported_and_the_others_are_checked(tmp_path: Path) -> None:
    with (tmp_path / "device-1.clock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # a kernel that never ends
        found = list(check_devices_here(os.environ | virtual_devices(3, tmp_path), first_answer_s=60, next_answer_s=8))

    assert [(check.gpu, check.trouble) for check in found] == [
        ("0", ""),
        ("1", "no answer within 8 s"),
        ("2", ""),
    ]
