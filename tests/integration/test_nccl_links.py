"""Links by NCCL in ``laggard doctor`` of many nodes: real processes of its nodes, with stand-ins for CuPy and NCCL."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.first_day_parts import nccl_to_itself
from laggard.collectors.device import GpuDevice
from laggard.collectors.device_check import DeviceCheck
from laggard.collectors.links.nccl_processes import NcclProcesses, nccl_version
from laggard.resilience.allocation.remote import Transport
from laggard.resilience.command import doctor as command
from laggard.resilience.command import link_check, nccl_check
from laggard.resilience.command.link_check import LinkCheck, check_links
from laggard.resilience.command.nccl_check import Rails
from tests.integration.fake_driver import answer_of
from tests.processes import seen_of
from tests.real_gpus import real_gpus
from tests.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
# Slow enough for bursts of 2 MiB, since the stand-in really sends them.
HEALTHY, SLOW = "rail_bytes_s=50e6", "rail_bytes_s=5e6"
WITHOUT = "from tests.fake_cupy.machine import the_machine\nthe_machine().has_nccl = False\n"
MARK = "LAGGARD_TEST_MARK"


@dataclass(frozen=True)
class Nodes:
    """Processes of this machine that stand for nodes, each with its own stand-in for CuPy."""

    folder: Path
    name = "a test"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        path = os.pathsep.join([str(self.folder / host), str(ROOT), *sys.path])
        return ["env", f"PYTHONPATH={path}", *argv]


SetUp = Callable[[Mapping[str, Sequence[str]]], dict[str, Transport | None]]


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetUp:
    """Describe the boards of some nodes, and return how to reach these."""
    monkeypatch.setattr(link_check, "resolve_addresses", lambda names: dict.fromkeys(names, "127.0.0.1"))
    for name in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def set_up(boards: Mapping[str, Sequence[str]]) -> dict[str, Transport | None]:
        for host, of_host in boards.items():
            made = ", ".join(f"Board({board})" for board in of_host)
            source = f"from tests.fake_cupy.machine import Board, install\ninstall({made})\n"
            (tmp_path / host).mkdir()
            (tmp_path / host / "cupy.py").write_text(source)
        return dict.fromkeys(boards, cast("Transport", Nodes(tmp_path)))

    return set_up


Check = Callable[[Mapping[str, Sequence[str]]], LinkCheck]


@pytest.fixture
def check(set_up: SetUp) -> Check:
    """Check the links of nodes with some boards, all of which may send by NCCL."""

    def check(boards: Mapping[str, Sequence[str]]) -> LinkCheck:
        rails = {host: {at: str(at) for at in range(len(of_host))} for host, of_host in boards.items()}
        return check_links(set_up(boards), dict(zip(boards, boards, strict=True)), rails=Rails(rails))

    return check


def rates(found: LinkCheck) -> dict[tuple[str, str, str], float]:
    return {(each.path, each.sender, each.receiver): each.n_bytes / each.duration_s for each in found.nccl.readings}


def checked(hosts: Sequence[str], n_gpus: int) -> dict[tuple[str, str], DeviceCheck]:
    gpus = [str(gpu) for gpu in range(n_gpus)]
    return {(host, gpu): DeviceCheck(gpu, seconds={"gemm_fp32": [1e-3]}) for host in hosts for gpu in gpus}


def test_the_doctor_names_the_node_that_sends_slowly_and_the_rail(
    set_up: SetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports = set_up({"node1": [HEALTHY] * 2, "node2": [HEALTHY, SLOW], "node3": [HEALTHY] * 2})
    monkeypatch.setattr(command, "_transports", lambda *_, **__: (transports, dict.fromkeys(transports, "")))
    monkeypatch.setattr(command, "_check", lambda *_, **__: (checked(list(transports), 2), {}, {}))

    result = CliRunner().invoke(command.doctor, ["--past", str(tmp_path / "past.json")], standalone_mode=False)

    assert result.return_value == 0, result.output
    slow = re.findall(r"nccl gpu1: link (\S+) to (\S+): 0.005 GB/s, 10 times as slow as the median", result.output)
    assert slow == [("node2", "node[1,3]")], result.output
    assert result.output.count("nccl gpu") == 1
    assert "nccl: 12 links measured: median 0.05 GB/s (gpu0, gpu1)" in result.output
    assert re.search(r"^6 links measured: median .* MB/s, round trip ", result.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("fault", "deadline", "why"),
    [
        ("never joins", "JOIN_S", "node1: no answer within 10 s; node2: no answer within 10 s"),
        ("hangs", "BURSTS_S", "node1: no answer within 10 s; node2: no answer within 10 s"),
        (
            "dies",
            "",
            "node1: the check ended with exit code 1: NcclError: NCCL_ERROR_REMOTE_ERROR: remote process exited or "
            "there was a network error; node2: the check ended with SIGKILL",
        ),
    ],
)
def test_a_partner_that_fails_is_named_and_the_other_rail_is_measured(
    check: Check, monkeypatch: pytest.MonkeyPatch, fault: str, deadline: str, why: str
) -> None:
    monkeypatch.setenv(MARK, mark := uuid.uuid4().hex)
    if deadline:
        monkeypatch.setattr(nccl_check, deadline, 10.0)

    found = check({"node1": [HEALTHY, HEALTHY], "node2": [HEALTHY, f'{HEALTHY}, rail_fault="{fault}"']})

    assert dict(found.nccl.failures) == {"gpu1: link node1 to node2": why}
    assert set(rates(found)) == {("gpu0", "node1", "node2"), ("gpu0", "node2", "node1")}
    assert len(found.readings) == 2
    wait_until(lambda: not with_mark(mark), lambda: f"left over: {with_mark(mark)}")


def with_mark(mark: str) -> list[str]:
    found = seen_of(psutil.process_iter(), lambda each: (" ".join(each.cmdline()), environment_of(each)))
    return [line for line, environ in found if environ.get(MARK) == mark]


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.AccessDenied:
        return {}  # another user's


def test_a_process_that_ends_at_once_says_why_and_has_the_variables_of_nccl(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("import os\nraise RuntimeError(os.environ['NCCL_SOCKET_IFNAME'])\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with contextlib.closing(NcclProcesses()) as processes:
        commands = {"0": {"rank": 0}, "1": {"rank": 1}}
        found = processes.ask(commands, DEADLINE_S, {"NCCL_SOCKET_IFNAME": "=ib0", "PYTHONPATH": path})
    why = "the check ended with exit code 1: RuntimeError: =ib0"
    assert found == {"answers": {}, "failures": {"0": why, "1": why}}


def test_where_there_is_no_nccl_it_is_said_what_to_install(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text = Path.write_text
    monkeypatch.setattr(
        Path, "write_text", lambda path, text: write_text(path, text + WITHOUT * ("node2" in str(path)))
    )

    found = check({"node1": [HEALTHY], "node2": [HEALTHY]})

    assert found.nccl.remarks == [
        "not measured on node2: CuPy finds no NCCL there; "
        "pip install nvidia-nccl-cu12, or nvidia-nccl-cu13 with CUDA 13"
    ]
    assert (found.nccl.readings, found.nccl.failures, len(found.readings)) == ((), {}, 2)


@pytest.mark.parametrize(
    ("arguments", "rails"),
    [
        ([], Rails({"node1": {0: "0"}, "node2": {0: "0"}})),
        (["--no-nccl"], None),
        (["--virtual-gpus=1"], None),
    ],
)
def test_nccl_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], rails: Rails | None
) -> None:
    asked = []

    def look(*arguments: object) -> LinkCheck:
        asked.append(arguments[-1])
        return LinkCheck()

    monkeypatch.setattr(command, "_check", lambda *_, **__: (checked(["node1", "node2"], 1), {}, {}))
    monkeypatch.setattr(command, "check_links", look)
    result = CliRunner().invoke(command.doctor, ["--past", str(tmp_path / "past.json"), *arguments])
    assert (result.exit_code, asked) == (0, [rails]), result.output


BOARDS = """
import json, os
from laggard.collectors.boards import read_board
import pynvml
pynvml.nvmlInit()
print(json.dumps(read_board(0, None).processes))
"""


def test_a_program_that_uses_a_gpu_is_seen(fake_nvml: Path) -> None:
    assert answer_of(fake_nvml, BOARDS, FAKE_NVML_PID=str(os.getpid())) == [os.getpid()]


def gpus_with_nccl(count: int) -> list[GpuDevice]:
    """Return so many real GPUs; skip the test where there are fewer, or CuPy finds no NCCL."""
    devices = real_gpus()
    if len(devices) < count:
        pytest.skip(f"NCCL needs {count} GPUs here, since it takes no two ranks on one")
    with warnings.catch_warnings():  # CuPy says so, too
        warnings.simplefilter("ignore")
        if not nccl_version():
            pytest.skip("CuPy finds no NCCL")
    return devices[:count]


@pytest.mark.gpu
def test_a_real_gpu_sends_to_itself_by_nccl() -> None:
    (device,) = gpus_with_nccl(1)
    assert nccl_to_itself(device).endswith(" sends to itself arrives")


@pytest.mark.gpu
def test_two_real_gpus_of_this_machine_send_to_each_other_by_nccl() -> None:
    ends = [device.gpu for device in gpus_with_nccl(2)]
    nodes = {gpu: NcclProcesses() for gpu in ends}

    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        for node in nodes.values():
            stack.enter_context(contextlib.closing(node))

        def ask(commands: Sequence[object], environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
            both = zip(ends, commands, strict=True)
            asked = [threads.submit(nodes[gpu].ask, {gpu: command}, DEADLINE_S, environ) for gpu, command in both]
            found = [each.result() for each in asked]
            assert [each["failures"] for each in found] == [{}, {}]
            return [each["answers"][gpu] for each, gpu in zip(found, ends, strict=True)]

        first, _ = ask([{"rank": 0}, {"rank": 1}], {})
        ask([{"id": first["id"]}] * 2)
        assert all(each["seconds"] > 0 for each in ask([{"n_bytes": 64 << 20}] * 2))
