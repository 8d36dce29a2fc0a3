"""The jobs that the benchmark ``blame`` draws, as it lists them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
N_JOBS = 2000
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def drawn(*options: str) -> Sequence[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks", "blame", "--list", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def jobs() -> Sequence[dict[str, Any]]:
    return drawn("--seed=1", f"--jobs={N_JOBS}")


def test_the_same_seed_and_number_make_the_same_job(jobs: Sequence[dict[str, Any]]) -> None:
    assert drawn("--seed=1", "--only=7") == [jobs[7]]
    assert drawn("--seed=2", "--only=7") != [jobs[7]]


def test_every_cause_is_drawn(jobs: Sequence[dict[str, Any]]) -> None:
    causes = Counter(job["cause"] for job in jobs)
    assert len(causes) == 14
    assert 0.2 * N_JOBS < causes["program at start"] < 0.35 * N_JOBS
    assert 0 < causes["link"] < 0.03 * N_JOBS


def test_nodes_are_bad_only_where_the_cause_is_a_node(jobs: Sequence[dict[str, Any]]) -> None:
    n_bad = {(job["cause"], len(job["bad"])) for job in jobs if job["bad"]}
    assert n_bad == {("node always", 1), ("node at times", 1), ("link", 2)}
    hosts = [{f"node{n}" for n in range(1, job["nodes"] + job["reserve"] + 1)} for job in jobs]
    assert all(here.issuperset(job["bad"]) for here, job in zip(hosts, jobs, strict=True))


def test_words_may_mislead_but_only_a_bad_node_says_what_only_a_bad_node_can(jobs: Sequence[dict[str, Any]]) -> None:
    of_nodes = {job["words"] for job in jobs if job["bad"]}
    of_programs = {job["words"] for job in jobs if job["cause"] == "program at start"}
    assert {ECC, "KeyError: labels", "exit: 1"} <= of_nodes
    assert {"RuntimeError: CUDA error: unspecified launch failure", "exit: 1"} <= of_programs
    assert ECC not in of_programs
