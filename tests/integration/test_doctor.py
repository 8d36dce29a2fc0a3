"""The real ``laggard doctor`` on virtual devices: healthy, slow and stuck ones."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.supervised_check import check_devices_here
from laggard.detectors.judging.diagnosis import diagnose
from laggard.resilience.allocation.ssh import Ssh
from laggard.resilience.command.doctor import as_text
from laggard.resilience.command.remote_check import check_hosts
from laggard.resilience.record.history_folder import HistoryFolder
from laggard.resilience.record.node_history import NodeHistory

DEADLINE_S = 120.0


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laggard", "doctor", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def virtual_devices(count: int, directory: Path) -> dict[str, str]:
    one_core_each = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return {VIRTUAL_DEVICES: str(count), VIRTUAL_DEVICE_DIR: str(directory), **one_core_each}


def test_without_a_gpu_nothing_is_checked_and_nothing_stands_in(tmp_path: Path) -> None:
    done = run_doctor("--past", str(tmp_path / "past.json"), CUDA_VISIBLE_DEVICES="")

    assert done.stderr == "laggard: no GPU found: use --virtual-gpus=K to check the processor instead\n"
    assert done.stdout == ""
    assert done.returncode == 3


def test_the_processor_is_checked_as_virtual_devices_if_that_is_asked_for(tmp_path: Path) -> None:
    done = run_doctor("--virtual-gpus=2", "--past", str(tmp_path / "past.json"))

    assert "gemm_fp32     Gflop/s" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("of 2 devices ok (virtual)")
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("verdict")]
    assert done.returncode == int("slow" in row.split())  # this machine's other work may make one slow


def test_devices_that_are_expected_and_missing_are_a_fault(tmp_path: Path) -> None:
    past, history = ("--past", str(tmp_path / "past.json")), tmp_path / "nodes"
    history.mkdir()
    done = run_doctor("--expect=2", f"--node-history={history}", *past, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    noted = {each.why for each in NodeHistory(HistoryFolder(history)).read() if each.host == socket.gethostname()}
    assert any("0 of 2 expected devices are there" in why for why in noted)
    assert "0 of 2 expected devices are there" in done.stdout  # and no virtual ones instead

    assert run_doctor("--expect=1", *past, **virtual_devices(1, tmp_path)).returncode == 0


def test_a_check_that_dies_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "missing"  # the device has no place for its clock

    found = list(check_devices_here(os.environ | virtual_devices(1, directory)))

    assert [(check.trouble, check.failure.partition(":")[0]) for check in found] == [("", "FileNotFoundError")]


def test_readings_are_kept_and_an_unreadable_file_of_them_is_refused(tmp_path: Path) -> None:
    past, where = tmp_path / "past.json", virtual_devices(1, tmp_path)
    for _ in range(2):
        assert run_doctor("--past", str(past), **where).returncode == 0
    devices = json.loads(past.read_text())["laggard-devices-1"]
    assert [len(readings) for readings in devices["virtual-localhost-0"].values()] == [2] * 6
    assert past.stat().st_mode & 0o077 == 0

    past.write_text("{}")
    done = run_doctor("--past", str(past), **where)
    assert done.returncode == 3  # it says nothing about the device
    assert f"cannot read past readings from {past} (KeyError: " in done.stderr
    assert "remove it, or name another with --past" in done.stderr


class FakeSsh(Ssh):
    """A transport to other nodes, all of which are this machine; ``{}`` stands for the remote command."""

    def __init__(self, script: str) -> None:
        self._script = script

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        return ["sh", "-c", self._script.replace("{}", '"$@"'), host, *argv]


def test_all_nodes_are_checked_and_those_without_an_answer_say_why() -> None:
    transports = {
        "here": None,
        "chatty": FakeSsh("echo Welcome; {}"),
        "closed": FakeSsh("echo no way >&2; exit 255"),
        "bare": FakeSsh("true"),
        "strange": FakeSsh("echo /usr/bin/python3: No module named laggard >&2; exit 1"),
        "empty": FakeSsh("/no/python {}"),
    }

    silent = check_hosts({"silent": FakeSsh("exec sleep 600")}, 1, answer_timeout_s=0.5)
    found = {host: node.checks for host, node in chain(check_hosts(transports, virtual_gpus=1), silent)}

    assert [(check.uuid, check.trouble) for host in ("here", "chatty") for check in found[host]] == [
        ("virtual-here-0", ""),
        ("virtual-chatty-0", ""),
    ]
    assert {host: [(c.gpu, c.trouble) for c in found[host]] for host in ("silent", "closed", "bare")} == {
        "silent": [(ALL_DEVICES, "no answer within 0.5 s")],
        "closed": [(ALL_DEVICES, "no answer: no way")],
        "bare": [(ALL_DEVICES, "no GPU found: use --virtual-gpus=K to check the processor instead")],
    }
    assert [check.failure for host in ("strange", "empty") for check in found[host]] == [
        "laggard does not run there: /usr/bin/python3: No module named laggard",
        "laggard does not run there: empty: 1: /no/python: not found",
    ]
    (diagnosis,) = diagnose({("strange", ALL_DEVICES): found["strange"][0]}, {}).values()
    assert diagnosis.condition == "unchecked"


def test_of_many_devices_only_the_failing_ones_are_shown() -> None:
    seconds = {"gemm_fp32": [0.001, 0.001]}
    checks = {
        (f"node{number}", "0"): DeviceCheck("0", "H100", f"uuid{number}", seconds, {"gemm_fp32": (1.0, "Tflop/s")})
        for number in range(100)
    }
    checks["node7", "0"] = DeviceCheck(
        "0", "H100", "uuid7", {"gemm_fp32": [0.002, 0.002]}, {"gemm_fp32": (0.5, "Tflop/s")}
    )
    checks["node100", ALL_DEVICES] = DeviceCheck(ALL_DEVICES, trouble="no answer: no way")

    head, *_, before_last, last = as_text(checks, diagnose(checks, {}), as_json=False).splitlines()

    assert re.split("  +", head) == ["probe", "unit", "node7 0", "node100"]
    assert before_last == "node100: no answer: no way"
    assert last == "99 of 100 devices ok (H100); none checked on 1 node"


def test_contradictory_or_wrong_hosts_are_refused() -> None:
    for arguments, complaint in {
        (
            "--all-nodes",
            "--hostlist=a",
        ): "--all-nodes is for a Slurm job, --hostlist and --hostfile are for ssh: use one",
        ("--all-nodes",): "--all-nodes needs a Slurm job (SLURM_JOB_ID is not set): run it inside salloc or sbatch",
        ("--hostlist=a b",): "'a b' is not a valid host name",
    }.items():
        done = run_doctor(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert complaint in done.stderr


def test_past_readings_that_cannot_be_kept_say_nothing_about_the_devices() -> None:
    done = run_doctor("--past=/proc/none/past")
    refusal = "laggard: --past=/proc/none/past cannot be written: No such file or directory; name another file\n"
    assert (done.returncode, done.stderr) == (3, refusal)


def test_an_incomplete_installation_says_nothing_about_the_devices(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('libffi.so.8 is missing')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run_doctor(PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (3, "laggard: the installation is incomplete: libffi.so.8 is missing\n")
