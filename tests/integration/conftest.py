"""Real servers for the tests that need one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.server import StateServer
from tests.integration.jobs import RunningJob


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="test") as server:
        yield server


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """Start ``laggard`` with some arguments, in a folder of its own or a given one, on a program's source or a file."""
    jobs: list[RunningJob] = []
    runtime_root = tempfile.mkdtemp(prefix="lt-", dir="/tmp")  # not in tmp_path, which is too long for Ray's sockets

    def start(*arguments: str, program: str | None = None, directory: Path | None = None) -> RunningJob:
        directory = directory or tmp_path / f"job{len(jobs)}"
        directory.mkdir(exist_ok=True)
        if program is not None:
            (directory / "program.py").write_text(textwrap.dedent(program))
        jobs.append(RunningJob(directory, runtime_root, *arguments, *(["program.py"] if program is not None else [])))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
    shutil.rmtree(runtime_root, ignore_errors=True)


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver library of our own: see fake_nvml.c."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return folder
