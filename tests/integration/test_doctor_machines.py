"""What ``laggard doctor`` says about machines of all kinds, healthy and faulty: a table.

CuPy and the driver's NVML are stand-ins; everything above them is real, in its own processes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.collectors import supervised_check
from laggard.collectors.supervised_check import boards_here, check_devices_here
from laggard.resilience.command import doctor as command
from tests.fake_cupy.kernels import host_compiler

ROOT = Path(__file__).parents[2]
HERE = socket.gethostname()
# Without memory for most of the probes, so that a check is short.
H100 = f"others_bytes={(80 << 30) - (90 << 20)}"
A100 = f'name="NVIDIA A100 80GB PCIe", speed=Speed(flop_s=10e12, memory_bytes_s=1e12, launch_s=9e-6), {H100}'
SLICE = f'name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", {H100}'
BRIDGES = {"FAKE_NVML_NAME": "NVIDIA A100 80GB PCIe", "FAKE_NVML_LINKS": "12"}
SOLDERED = {"FAKE_NVML_LINKS": "18"}


@dataclass(frozen=True)
class Visit:
    """A machine, and what the doctor should say.

    Attributes
    ----------
    boards
        Of the stand-in for CuPy.
    nvml
        Settings of the stand-in for NVML.
    words
        Lines that are printed, besides the table and how many devices are well.
    healthy
        How many devices are.
    arguments
        Of the command.
    visible
        ``CUDA_VISIBLE_DEVICES``, if it is set.
    """

    boards: Sequence[str]
    exit_code: int
    healthy: int
    words: Sequence[str] = ()
    nvml: dict[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    visible: str | None = None


GONE = "machine: GPU-1 (NVIDIA H100 80GB HBM3 at 00000000:01:00.0) was here at an earlier check and is gone; if it"
NOT_REMAPPED = "memory: a row could not be remapped; the GPU should be replaced"

TABLE: dict[str, Sequence[Visit]] = {
    "three healthy GPUs": [Visit([H100] * 3, 0, 3, nvml=SOLDERED)],
    "two models": [Visit([H100, H100, A100, A100], 0, 4)],
    "slices of one GPU": [Visit([SLICE, SLICE], 0, 2, nvml={**SOLDERED, "FAKE_NVML_MIG": "1"})],
    "a server of MPS": [Visit([H100], 0, 1, nvml={"FAKE_NVML_PID": "mps"})],
    "a bridge between two of three": [Visit([A100] * 3, 0, 3, nvml={**BRIDGES, "FAKE_NVML_BRIDGED": "2"})],
    "a row that cannot be remapped": [Visit([H100] * 2, 1, 1, [f"gpu 1: {NOT_REMAPPED}"], {"FAKE_NVML_REMAP": "1"})],
    "a GPU that has fallen off the bus": [
        Visit(
            [H100, "lost=True"],
            1,
            1,
            ["machine: gpu 1 of the driver: GPU is lost", "gpu 1: CUDARuntimeError: cudaErrorDevicesUnavailable"],
            {"FAKE_NVML_GONE": "1"},
        )
    ],
    "a driver that is stuck": [
        Visit(
            [H100, H100],
            1,
            1,
            ["machine: gpu 1 of the driver: no answer within 2 s", "gpu 1: no answer within 2 s"],
            {"FAKE_NVML_STALL": "1"},
        )
    ],
    "a GPU that is gone": [
        Visit([H100] * 2, 0, 2, ["2 GPUs are remembered in "]),
        Visit([H100], 1, 1, [GONE]),
    ],
    "a row that cannot be remapped, and no CuPy": [
        Visit(
            ["no CuPy"],
            1,
            0,
            [f"machine: NVIDIA H100 80GB HBM3 at 00000000:00:00.0: {NOT_REMAPPED}", "gpu 0: CupyMissingError: "],
            {"FAKE_NVML_REMAP": "0"},
        )
    ],
    "no CuPy": [Visit(["no CuPy"], 3, 0, ["gpu 0: CupyMissingError: "])],
}

See = Callable[[Visit], tuple[int, str]]


@pytest.fixture
def mps_server(tmp_path: Path) -> Iterator[int]:
    """A process that is named like the server of CUDA's Multi-Process Service."""
    sleeper = tmp_path / "nvidia-cuda-mps-server"
    sleeper.symlink_to(sys.executable)
    process = subprocess.Popen([sleeper, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


@pytest.fixture
def see(tmp_path: Path, fake_nvml: Path, mps_server: int, monkeypatch: pytest.MonkeyPatch) -> See:
    """Send the doctor to a machine, and return its exit code and what it printed."""
    if host_compiler() is None:
        pytest.skip("there is no C++ compiler")
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def see(visit: Visit) -> tuple[int, str]:
        # Only what is stuck has a deadline that may come too soon.
        next_answer_s = 2 if any("no answer within 2 s" in words for words in visit.words) else 60
        for name, look in (("check_devices_here", check_devices_here), ("boards_here", boards_here)):
            monkeypatch.setattr(supervised_check, name, partial(look, first_answer_s=60, next_answer_s=next_answer_s))
        made = ", ".join(f"Board({board})" for board in visit.boards)
        source = f"from tests.fake_cupy.machine import Board, Speed, install\ninstall({made})\n"
        if "no CuPy" in visit.boards:
            source = "raise ImportError('No module named cupy')\n"
        (tmp_path / "cupy.py").write_text(source)
        variables = {"FAKE_NVML_COUNT": str(len(visit.boards)), **visit.nvml, "PYTHONPATH": path}
        variables["FAKE_NVML_PID"] = str(mps_server) if "FAKE_NVML_PID" in visit.nvml else str(os.getpid())
        if visit.visible is not None:
            variables["CUDA_VISIBLE_DEVICES"] = visit.visible
        arguments = ["--past", str(tmp_path / "past.json"), *visit.arguments]
        result = CliRunner().invoke(
            command.doctor, arguments, env={**variables, "LD_LIBRARY_PATH": str(fake_nvml)}, standalone_mode=False
        )
        return result.return_value, result.output.replace(f"{HERE}: ", "machine: ").replace(f"{HERE} ", "")

    return see


@pytest.mark.parametrize("visits", TABLE.values(), ids=TABLE)
def test_the_doctor_knows_a_healthy_machine_from_a_faulty_one(see: See, visits: Sequence[Visit]) -> None:
    look(see, visits)


def look(see: See, visits: Sequence[Visit]) -> None:
    for visit in visits:
        exit_code, output = see(visit)
        assert exit_code == visit.exit_code, output
        for words in (*visit.words, f"{visit.healthy} of {len(visit.boards)} devices ok"):
            assert any(line.startswith(words) for line in output.splitlines()), f"no {words!r} in:\n{output}"
