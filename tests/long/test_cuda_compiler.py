"""The extra for NVIDIA's GPUs, without a GPU: CuPy has what we use of it, and our kernels become what we mean."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.long.environments import ROOT, environment_with

DEADLINE_S = 300.0
# From Volta to Blackwell: the oldest and the newest that this version of CUDA compiles for.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
# The disassembler is of the next version, and knows no Volta.
DISASSEMBLED = ARCHITECTURES[1:]

# CuPy takes the last byte off a program, as off a text.
COMPILE = """
import json, sys
from cupy_backends.cuda.libs import nvrtc
from laggard.collectors.probes.cuda_kernels import KERNELS

folder, *architectures = sys.argv[1:]
for architecture in architectures:
    program = nvrtc.createProgram(KERNELS, "kernels.cu", (), ())
    nvrtc.compileProgram(program, (f"--gpu-architecture=sm_{architecture}",))
    with open(f"{folder}/{architecture}", "wb") as file:
        file.write(nvrtc.getCUBIN(program) + bytes(1))
"""

_WRITTEN = re.compile(r"^(?:@!?U?P\w+ )?([\w.]+) (U?R\d+)\b(.*);", re.MULTILINE)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the extra, a disassembler, and what the stand-in's tests need."""
    folder = tmp_path_factory.mktemp("cuda")
    more = ("nvidia-cuda-nvdisasm", "pytest", "ml-dtypes")
    return environment_with(folder / "venv", "laggard[cuda12]", *more)


@pytest.fixture(scope="module")
def machine_code(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[str]]]:
    """The instructions of each kernel, by architecture."""
    folder = tmp_path_factory.mktemp("compiled")
    command = [str(environment), "-c", COMPILE, str(folder), *map(str, ARCHITECTURES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    (disassembler,) = environment.parents[1].glob("lib/python*/site-packages/nvidia/*/bin/nvdisasm")
    found = {}
    for architecture in DISASSEMBLED:
        listing = subprocess.check_output([disassembler, "-c", folder / str(architecture)], text=True)
        found[architecture] = dict(_kernels(listing))
    return found


def _kernels(listing: str) -> Iterator[tuple[str, list[str]]]:
    _, *parts = re.split(r"^//-+ \.text\.(\w+) +-+$", listing, flags=re.MULTILINE)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        lines = (re.sub(r"/\*.*?\*/", "", line).strip() for line in part.splitlines())
        yield name, [line for line in lines if line.endswith(";")]


@pytest.mark.timeout(1800)
def test_the_stand_in_for_cupy_has_only_what_cupy_has(environment: Path) -> None:
    plain = ("--noconftest", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider", "-q", "-rs")
    command = [str(environment), "-m", "pytest", *plain, str(ROOT / "tests" / "unit" / "test_fake_cupy.py")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def test_the_clock_is_read_right_before_and_after_the_chain(machine_code: dict[int, dict[str, list[str]]]) -> None:
    for architecture, kernels in machine_code.items():
        marks = re.findall(r"SR_GLOBALTIMERLO|SR_CLOCKLO|FFMA", "\n".join(kernels["clock_ratio"]))
        around = ("SR_GLOBALTIMERLO", "SR_CLOCKLO"), ("SR_CLOCKLO", "SR_GLOBALTIMERLO")
        assert (tuple(marks[:2]), tuple(marks[-2:])) == around, architecture
        assert set(marks[2:-2]) == {"FFMA"}, architecture


def test_each_step_of_the_chain_needs_the_one_before(machine_code: dict[int, dict[str, list[str]]]) -> None:
    for architecture, kernels in machine_code.items():
        steps = [line for line in kernels["clock_ratio"] if "FFMA" in line]
        assert len(steps) >= 4, architecture
        registers = {re.findall(r"FFMA (R\d+), (R\d+)", line)[0] for line in steps}
        assert len(registers) == 1, (architecture, registers)  # all of them in the same one
        ((result, operand),) = registers
        assert result == operand, architecture


def test_the_address_of_each_read_comes_from_the_read_before(machine_code: dict[int, dict[str, list[str]]]) -> None:
    for architecture, kernels in machine_code.items():
        reads = 0
        # Of what each register holds: the operation, and the one that its first operand came from.
        origin: dict[str, tuple[str, str]] = {}
        for operation, result, rest in _WRITTEN.findall("\n".join(kernels["chase"])):
            operands = re.findall(r"\bU?R\d+\b", rest)
            if "STRONG" in operation:  # past the nearest cache
                reads += 1
                computed, from_what = origin[operands[-1]]
                assert computed.startswith("IMAD.WIDE"), architecture
                assert from_what.startswith("LDG"), architecture
            origin[result] = operation, origin[operands[0]][0] if operands and operands[0] in origin else ""
        assert reads >= 4, architecture


def test_the_empty_kernel_does_nothing(machine_code: dict[int, dict[str, list[str]]]) -> None:
    for architecture, kernels in machine_code.items():
        before_exit = kernels["nothing"][: kernels["nothing"].index("EXIT ;")]
        assert len(before_exit) <= 1, architecture  # the address of the stack
