"""What speaks against a node after a failure, from checks before and after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from laggard.resilience.agent.node_check import gpu_health, hardware_lines, main, recent_kernel_lines
from laggard.resilience.decision import wording
from laggard.resilience.decision.evidence import GpuHealth, Memory, NodeCheck, evidence_against, memory_ran_out
from laggard.resilience.wire import decode
from laggard.resilience.wire.checks import CheckNode, NodeChecked
from laggard.system.memory import oom_kills
from tests.fake_cupy.kernels import host_compiler
from tests.fake_cupy.machine import Board, cupy_on

GOOD = NodeCheck(
    1e9,
    {"0": GpuHealth(), "1": GpuHealth(uncorrectable=3)},
    {"/": 1 << 30, "/home": 1 << 30},
    2,
    memory=Memory(256 << 30, 200 << 30),
)
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4211, GPU has fallen off the bus."


def gpus(**changed: GpuHealth) -> NodeCheck:
    return replace(GOOD, gpus={**GOOD.gpus, **{name.removeprefix("gpu"): health for name, health in changed.items()}})


def worded(checks: Mapping[str, tuple[NodeCheck, NodeCheck]]) -> dict[str, str]:
    return {found.host: wording.findings(found.findings) for found in evidence_against(checks)}


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (GOOD, None),
        (gpus(gpu1=GpuHealth(lost=True)), "gpu 1 is lost"),
        (replace(GOOD, gpus={"0": GpuHealth()}), "gpu 1 is gone"),
        (gpus(gpu1=GpuHealth(uncorrectable=5)), "gpu 1 has had 2 uncorrectable memory errors"),
        (gpus(gpu0=GpuHealth(remap_failed=True)), "gpu 0 cannot replace a broken row of its memory"),
        (replace(GOOD, free_bytes={"/": 1 << 20}), "the disk of / is full"),
        (replace(GOOD, free_bytes={"/": (16 << 20) - 1}), "the disk of / is full"),
        (replace(GOOD, free_bytes={"/": 16 << 20}), None),
        (replace(GOOD, kernel_lines=(XID,)), f"its kernel reports {XID!r}"),
        (replace(GOOD, kernel_lines=(XID + 200 * "!",)), f"its kernel reports {(XID + 200 * '!')[:160]!r}"),
        (replace(GOOD, kernel_lines=("oom_kill 1", "nothing")), None),
        (replace(GOOD, oom_kills=9), None),
        (replace(GOOD, memory=Memory(256 << 30, 2 << 30)), "its memory is in use by others: 2.1 of 274.9 GB are free"),
        (replace(GOOD, memory=Memory(256 << 30, 13 << 30)), None),
        (replace(GOOD, memory=Memory(192 << 30, 150 << 30)), "only 206.2 of its 274.9 GB of memory are present"),
        (replace(GOOD, memory=Memory(255 << 30, 150 << 30)), None),
        (replace(GOOD, memory=None), None),
    ],
)
def test_what_is_new_since_the_job_began_speaks_against_a_node(after: NodeCheck, found: str | None) -> None:
    assert worded({"n1": (GOOD, GOOD), "n2": (GOOD, after)}) == ({"n2": found} if found else {})
    assert worded({"n1": (GOOD, GOOD), "n2": (after, after)}) == {}  # as it was before


def test_everything_that_is_found_is_named() -> None:
    after = replace(GOOD, gpus={"0": GpuHealth(lost=True)}, free_bytes={"/": 0})
    expected = "gpu 0 is lost; gpu 1 is gone; the disk of / is full"
    assert worded({"n1": (GOOD, GOOD), "n2": (GOOD, after)}) == {"n2": expected}


def test_a_finding_has_the_numbers_that_it_tells_of_and_no_others() -> None:
    after = replace(gpus(gpu0=GpuHealth(lost=True), gpu1=GpuHealth(uncorrectable=5)), memory=Memory(256 << 30, 2 << 30))
    [found] = evidence_against({"n1": (GOOD, after)})
    assert {each.kind: (each.number, each.total) for each in found.findings} == {
        "gpu lost": (0, 0),
        "memory errors": (2, 0),
        "memory in use": (2.1, 274.9),
    }


def test_what_most_nodes_share_speaks_against_none_of_them() -> None:
    full = replace(GOOD, free_bytes={"/": 0})
    checks = {"n1": (GOOD, full), "n2": (GOOD, full), "n3": (GOOD, GOOD)}
    assert worded(checks) == {}
    assert worded({**checks, "n4": (GOOD, GOOD)}).keys() == {"n1", "n2"}
    assert worded({"n1": (GOOD, full)}).keys() == {"n1"}


@pytest.mark.parametrize(
    ("total", "free", "found"),
    [(100, 50, set()), (98, 50, set()), (97, 50, {"memory lost"}), (100, 5, set()), (100, 4, {"memory in use"})],
)
def test_a_node_may_lack_2_percent_of_its_memory_and_5_percent_must_be_free(
    total: int, free: int, found: set[str]
) -> None:
    before, after = (replace(GOOD, memory=Memory(*each)) for each in ((100, 50), (total, free)))
    assert {each.kind for of in evidence_against({"n1": (before, after)}) for each in of.findings} == found


@pytest.mark.parametrize(("total", "free"), [(256 << 30, 2 << 30), (192 << 30, 150 << 30)])
def test_what_two_nodes_of_one_machine_find_of_its_memory_a_moment_apart_speaks_against_neither(
    total: int, free: int
) -> None:
    found = (Memory(total, free), Memory(total + (1 << 20), free + (1 << 20)))
    checks = {f"n{number}": (GOOD, replace(GOOD, memory=memory)) for number, memory in enumerate(found)}
    assert worded(checks) == {}


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (gpus(gpu2=GpuHealth(uncorrectable=1)), "gpu 2 has had 1 uncorrectable memory errors"),
        (gpus(gpu2=GpuHealth(lost=True)), "gpu 2 is lost"),
        (gpus(gpu2=GpuHealth(remap_failed=True)), "gpu 2 cannot replace a broken row of its memory"),
        (gpus(gpu2=GpuHealth()), None),
        (replace(GOOD, free_bytes={**GOOD.free_bytes, "/scratch": 0}), "the disk of /scratch is full"),
    ],
)
def test_what_was_not_there_before_is_compared_with_what_is_sound(after: NodeCheck, found: str | None) -> None:
    assert worded({"n1": (GOOD, after)}) == ({"n1": found} if found else {})


@pytest.mark.parametrize(("before", "found"), [(16 << 20, "the disk of / is full"), ((16 << 20) - 1, None)])
def test_a_disk_that_was_full_before_is_not_named_again(before: int, found: str | None) -> None:
    checks = replace(GOOD, free_bytes={"/": before}), replace(GOOD, free_bytes={"/": 0})
    assert worded({"n1": checks}) == ({"n1": found} if found else {})


def test_memory_ran_out_if_the_kernel_killed_in_between() -> None:
    assert memory_ran_out(GOOD, replace(GOOD, oom_kills=3))
    assert memory_ran_out(NodeCheck(1e9), NodeCheck(1e9, oom_kills=1))
    assert not memory_ran_out(GOOD, GOOD)


def checks(written: pytest.CaptureFixture[str]) -> list[NodeCheck]:
    """What the process that checks a node has written."""
    found = [decode(line.encode(), NodeChecked).found for line in written.readouterr().out.splitlines()]
    return [check for check in found if check is not None]


def test_a_node_without_gpus_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    main(CheckNode(()))
    first, last = checks(capsys)
    assert last == replace(first, memory=last.memory)
    assert last.free_bytes[str(Path.cwd())] > 0
    assert last.gpus == {}


def test_what_the_agents_processes_hold_counts_as_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine whose memory is full, of which processes of the agent hold 300 MB."""
    full = SimpleNamespace(total=1 << 40, available=0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: full)
    program = "held = bytearray(300_000_000); print('held', flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        main(CheckNode(()), agent_pid=os.getpid())
        holder.communicate(b"\n")
    memory = checks(capsys)[-1].memory
    assert memory is not None
    assert memory.total_bytes == 1 << 40
    assert 300_000_000 < memory.free_bytes < 1 << 40


def test_virtual_devices_have_no_driver_to_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LAGGARD_VIRTUAL_DEVICE_DIR", str(tmp_path))
    main(CheckNode(("0", "1")))
    assert [check.gpus for check in checks(capsys)] == [{}, {}]


class Driver:
    """A driver that knows GPU 0, and the values of its fields."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}

    def nvmlInit(self) -> None:  # noqa: N802 - as NVML has it
        """There is a driver."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index != 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return index

    def nvmlDeviceGetFieldValues(self, _: int, numbers: list[int]) -> list[SimpleNamespace]:  # noqa: N802
        double = {"nvmlReturn": pynvml.NVML_SUCCESS, "valueType": pynvml.NVML_VALUE_TYPE_DOUBLE}
        return [
            SimpleNamespace(fieldId=number, value=SimpleNamespace(dVal=self.values[number]), **double)
            for number in numbers
            if number in self.values
        ]


def test_a_gpu_has_the_counters_of_its_driver() -> None:
    driver = Driver()
    assert gpu_health("0", driver) == GpuHealth()
    driver.values |= {pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 7.0, pynvml.NVML_FI_DEV_REMAPPED_FAILURE: 1.0}
    assert gpu_health("0", driver) == GpuHealth(uncorrectable=7, remap_failed=True)


def test_a_gpu_that_its_driver_does_not_know_is_lost() -> None:
    assert gpu_health("1", Driver()) == GpuHealth(lost=True)


def test_kills_for_want_of_memory_are_those_of_the_nodes_own_group(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "vmstat").write_text("nr_free 1\noom_kill 9\n")
    assert oom_kills(tmp_path) == 9
    group = tmp_path / "sys" / "fs" / "cgroup" / "job7"
    group.mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("1:name=systemd:/x\n0::/job7\n")
    (group / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills(tmp_path) == 3


def test_recent_lines_of_the_kernel_about_hardware_are_read(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    assert list(recent_kernel_lines(0, log)) == []
    log.write_text(f"3,812,5000000,-;{XID}\n SUBSYSTEM=pci\n")  # a record as the kernel hands it out
    assert list(recent_kernel_lines(5.0, log)) == [XID]
    assert list(recent_kernel_lines(5.1, log)) == []
    assert hardware_lines([XID, "usb 1-1: new device", "Memory cgroup out of memory: Killed process 1"]) == [XID]


def test_wrong_results_of_a_test_kernel_speak_against_a_node() -> None:
    wrong = replace(GOOD, faults={"1": "wrong results of the probe gemm_fp32: 3"})
    found = "gpu 1 gives wrong results of the probe gemm_fp32: 3"
    assert worded({"n1": (GOOD, GOOD), "n2": (GOOD, wrong)}) == {"n2": found}


@pytest.mark.skipif(host_compiler() is None, reason="there is no C++ compiler")
def test_each_gpu_is_probed_after_all_else_and_a_line_is_written_after_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with cupy_on(Board(), Board(wrong_by=1.0), Board(others_bytes=80 << 30)):
        main(CheckNode(("0", "1", "2"), probe=True), Driver())
    lines = checks(capsys)
    assert [sorted(line.faults) for line in lines] == [[], [], [], ["1"]]  # the third has no memory left
    assert "wrong results" in lines[-1].faults["1"]
    assert lines[1] == replace(lines[-1], faults={})
