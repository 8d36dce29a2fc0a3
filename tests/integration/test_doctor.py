"""The real ``laggard doctor`` on virtual devices: healthy, slow and stuck ones."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from collectors.checkup import Checkup
from collectors.checkups import ALL_DEVICES, checkups_here
from collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from detectors.examination import examine
from resilience.allocation.ssh import Ssh
from resilience.doctor import as_text
from resilience.visits import visits

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


class Way(Ssh):
    """A way to other nodes, all of which are this machine; ``{}`` is what is to run there."""

    def __init__(self, script: str) -> None:
        self._script = script

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        return ["sh", "-c", self._script.replace("{}", '"$@"'), host, *argv]


def test_all_nodes_are_visited_and_those_without_an_answer_say_why() -> None:
    ways = {
        "here": None,
        "chatty": Way("echo Welcome; {}"),
        "closed": Way("echo no way >&2; exit 255"),
        "bare": Way("true"),
    }

    found = dict(visits(ways, virtual_gpus=1)) | dict(visits({"silent": Way("exec sleep 600")}, 1, answer_s=0.5))

    assert [(checkup.uuid, checkup.trouble) for host in ("here", "chatty") for checkup in found[host]] == [
        ("virtual-here-0", ""),
        ("virtual-chatty-0", ""),
    ]
    assert {host: [(c.gpu, c.trouble) for c in found[host]] for host in ("silent", "closed", "bare")} == {
        "silent": [(ALL_DEVICES, "no answer within 0.5 s")],
        "closed": [(ALL_DEVICES, "no answer: no way")],
        "bare": [(ALL_DEVICES, "there is no GPU: --virtual-gpus=K has the processor stand in")],
    }


def test_of_many_devices_only_the_failing_ones_are_shown() -> None:
    seconds = {"gemm_fp32": [0.001, 0.001]}
    checkups = {
        (f"node{number}", "0"): Checkup("0", "H100", f"uuid{number}", seconds, {"gemm_fp32": (1.0, "Tflop/s")})
        for number in range(100)
    }
    checkups["node7", "0"] = Checkup(
        "0", "H100", "uuid7", {"gemm_fp32": [0.002, 0.002]}, {"gemm_fp32": (0.5, "Tflop/s")}
    )
    checkups["node8", ALL_DEVICES] = Checkup(ALL_DEVICES, trouble="no answer: no way")

    head, *_, before_last, last = as_text(checkups, examine(checkups, {}), as_json=False).splitlines()

    assert re.split("  +", head) == ["probe", "unit", "node7 0", "node8"]
    assert before_last == "node8: no answer: no way"
    assert last == "99 of 100 devices ok (H100); 1 node without an answer"


def test_what_is_to_be_visited_must_be_clear() -> None:
    for arguments, complaint in {
        (
            "--all-nodes",
            "--hostlist=a",
        ): "--all-nodes is for Slurm's job, --hostlist and --hostfile are for ssh: leave one",
        ("--all-nodes",): "--all-nodes needs a job of Slurm's (SLURM_JOB_ID): run it inside salloc or sbatch",
        ("--hostlist=a b",): "'a b' is no host's name",
    }.items():
        done = run_doctor(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert complaint in done.stderr
