"""A virtual device runs one kernel at a time, whichever process submits it, and its clock counts the kernels' work."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from laggard.collectors.device import (
    VIRTUAL_DEVICE_DIR,
    VIRTUAL_DEVICES,
    VirtualDevice,
    gpu_names,
    local_device,
    local_devices,
    uuid_text,
)
from laggard.collectors.errors import DeviceError
from laggard.kvstore.client.environment import NODE

DEADLINE_S = 60.0


def burn(cpu_s: float) -> None:
    """Use the processor for a while, as a kernel does."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


NOTE_KERNELS = """
import os, sys, time
from pathlib import Path
from laggard.collectors.device import VirtualDevice

folder = Path(sys.argv[1])
device = VirtualDevice("0", folder)

def kernel():
    with (folder / "log").open("a") as file:
        file.write(f"begin {os.getpid()}\\n")
        file.flush()
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass
        file.write(f"end {os.getpid()}\\n")

print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    device.run(kernel)
"""


def test_kernels_of_different_processes_never_overlap(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NOTE_KERNELS, str(tmp_path)]
    with contextlib.ExitStack() as started:
        processes = [
            started.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3 * 20 * 2
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin.split()[0] == "begin"
        assert end == begin.replace("begin", "end")


def test_a_reading_counts_the_kernels_that_ran_before_its_own(tmp_path: Path) -> None:
    """Submitted while another kernel holds the device, a probe reads that kernel's time and its own."""
    device = VirtualDevice("0", tmp_path)
    submitting = threading.Event()
    readings: list[float] = []

    def probe() -> None:
        submitting.set()
        readings.append(device.timed(lambda: burn(0.01))[1])

    thread = threading.Thread(target=probe)

    def other() -> None:
        thread.start()
        submitting.wait(DEADLINE_S)
        burn(0.3)

    device.run(other)
    thread.join(DEADLINE_S)
    assert readings[0] >= 0.3


def test_the_clock_stands_still_while_the_device_is_idle(tmp_path: Path) -> None:
    device = VirtualDevice("0", tmp_path)
    device.run(lambda: burn(0.01))
    burn(0.2)  # the machine is busy, the device is not
    assert device.timed(lambda: None)[1] < 0.1


def test_a_kernel_that_fails_frees_the_device(tmp_path: Path) -> None:
    device = VirtualDevice("0", tmp_path)
    with pytest.raises(ZeroDivisionError):
        device.run(lambda: 1 / 0)
    assert device.run(lambda: 7) == 7


def test_the_devices_of_a_process_are_those_that_it_was_allotted(tmp_path: Path) -> None:
    node = {"LAGGARD_VIRTUAL_DEVICES": "4", "LAGGARD_VIRTUAL_DEVICE_DIR": str(tmp_path)}
    assert [device.gpu for device in local_devices(node)] == ["0", "1", "2", "3"]
    assert [device.gpu for device in local_devices(node | {"CUDA_VISIBLE_DEVICES": "2,3"})] == ["2", "3"]
    assert local_device(node | {"CUDA_VISIBLE_DEVICES": "3"}).gpu == "3"


@pytest.mark.skipif(bool(gpu_names()), reason="this machine has GPUs")
def test_without_any_device_the_remedy_is_named() -> None:
    with pytest.raises(DeviceError, match=r"^no GPU here: --virtual-gpus=K makes K virtual devices a node$"):
        local_devices({})


def test_a_device_has_a_name_that_stays(tmp_path: Path) -> None:
    environ = {VIRTUAL_DEVICES: "2", VIRTUAL_DEVICE_DIR: str(tmp_path), NODE: "node3"}
    assert [device.uuid for device in local_devices(environ)] == ["virtual-node3-0", "virtual-node3-1"]
    raw = bytes(range(16, 32))
    assert uuid_text(raw) == "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
    assert uuid_text(raw[:4]) == "GPU-10111213-0000-0000-0000-000000000000"
    assert uuid_text(b"") == ""


def test_a_rank_that_sees_all_devices_has_that_of_its_local_rank(tmp_path: Path) -> None:
    environ = {VIRTUAL_DEVICES: "2", VIRTUAL_DEVICE_DIR: str(tmp_path)}
    ranks = [local_device({**environ, "LOCAL_RANK": str(rank)}).gpu for rank in range(4)]
    assert ranks == ["0", "1", "0", "1"]  # more ranks than devices share them
    assert local_device({**environ, "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}).gpu == "1"
