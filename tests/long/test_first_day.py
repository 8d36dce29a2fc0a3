"""The first day on a GPU, on virtual devices, with nothing installed but what the probes need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.without_extras import without_extras

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280.0
# What a machine with a GPU may lack: all but CuPy, NumPy, psutil, nvidia-ml-py and tqdm.
MISSING = (
    *("click", "cryptography", "hypothesis", "matplotlib", "msgspec", "orjson", "pandas", "pydantic", "pytest", "ray"),
    *("redis", "rich", "scipy", "starlette", "torch", "uvicorn", "yaml"),
)


def test_every_part_runs_without_the_packages_that_only_jobs_need(tmp_path: Path) -> None:
    file = tmp_path / "first-day.json"
    command = [sys.executable, "-m", "benchmarks", "first-day", "--minutes", "0.7", "--json", str(file)]
    environ = without_extras(tmp_path, MISSING)

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=DEADLINE_S)

    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    assert len(written["parts"]) > 5
    problems = {part["problem"] for part in written["parts"]}
    assert problems <= {"", "Left out: the time was over."}  # on a machine that is slow today
    assert "PyTorch is missing, so nothing is measured." in done.stdout
    assert "| redis | MISSING: ModuleNotFoundError" in done.stdout
    assert "| gemm_fp32 computes correctly | yes | 0 wrong results |" in done.stdout
    assert written["readings"]["alone"]["gemm_fp32"]


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("start", "a compiled function"),
        ("group", "gloo: peers, after an abort"),
        ("copies", "0.062 GiB copied on the device"),
        ("fault", "an index that is too large"),
        ("killed", "its memory free"),
    ],
)
def test_each_task_of_a_fresh_rank_runs_on_a_processor(task: str, found: str) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.fresh_rank", task, "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)[found]
    assert value == "IndexError; the process goes on" if task == "fault" else value > 0
