"""Which tests run side by side (pytest-xdist gives each group to one worker, in the order below), and real parts."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from xdist.scheduler import LoadScopeScheduling

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.server.process import StateServer
from tests.integration.jobs import RunningJob

# What takes longest begins first, so that the short ones fill up what is left. Each file that no group names is a group
# of its own.
GROUPS = {
    # They share machines, and mostly wait: for Slurm's timers and for machines that come up.
    "clusters": ("tests/clusters/",),
    # They find out which virtual device is slow. Never two at once, since each loads the processors of this machine.
    "detection": (
        "tests/integration/test_slow_gpu.py",
        "tests/long/test_slow_gpu.py",
        "tests/integration/test_detect.py",
        "tests/long/test_detect.py",
        "tests/long/test_attached.py",
        "tests/long/test_slow_gpu_healthy.py",
        "tests/long/test_isolation.py",
        "tests/long/test_torchrun.py",
    ),
    "jobs": ("tests/integration/test_job.py", "tests/long/test_jobs.py"),
}
THEN = ("tests/long/", "tests/integration/", "tests/property/", "tests/unit/")
PLACES = [*GROUPS.values(), *((folder,) for folder in THEN)]

BEGAN_S = time.monotonic()

# No test depends on how fast the machine is. A property that more examples would show has them in its own settings.
hypothesis.settings.register_profile("laggard", deadline=None, max_examples=40)
hypothesis.settings.load_profile("laggard")


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it is not typed
    """Gives each group to one worker. xdist's own groups do nothing with pytest 9.2: a test's id no longer changes."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # which there is with xdist alone
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Have the tests run by groups."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests into the order of their groups, and mark those of clusters."""
    for item in items:
        if item.nodeid.startswith("tests/clusters/"):
            item.add_marker(pytest.mark.root("to make network namespaces"))
    items.sort(key=lambda item: _place_of(item.nodeid))  # which leaves the tests of a group in theirs


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be bounded: CI has less time than all long tests take."""
    parser.addoption(
        "--begin-within", type=float, metavar="MINUTES", help="skip the tests that have not begun after this time"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs root, or comes too late for --begin-within."""
    if (root := item.get_closest_marker("root")) is not None and os.geteuid() != 0:
        pytest.skip(f"needs root {root.args[0]}")
    limit = item.config.getoption("--begin-within")
    if limit is not None and time.monotonic() - BEGAN_S > limit * 60:
        pytest.skip(f"not begun within {limit:g} min")


def _group_of(test: str) -> str:
    return next((group for group, paths in GROUPS.items() if test.startswith(paths)), test.partition("::")[0])


def _place_of(test: str) -> int:
    return next((place for place, paths in enumerate(PLACES) if test.startswith(paths)), len(PLACES))


@pytest.fixture(autouse=True)
def _our_logger() -> Iterator[None]:
    """Leave the root of our loggers as it was: a command that a test runs in this process configures it."""
    ours = logging.getLogger("laggard")
    level, handlers, propagate = ours.level, ours.handlers[:], ours.propagate
    yield
    for handler in ours.handlers:
        if handler not in handlers:
            handler.close()
    ours.setLevel(level)
    ours.handlers[:], ours.propagate = handlers, propagate


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """Start ``laggard`` with some arguments, in a folder of its own or a given one, on a program's source or a file."""
    jobs: list[RunningJob] = []
    runtime_root = tempfile.mkdtemp(prefix="lt-", dir="/tmp")  # not in tmp_path, which is too long for Ray's sockets

    def start(
        *arguments: str, program: str | None = None, directory: Path | None = None, **more: Sequence[str]
    ) -> RunningJob:
        directory = directory or tmp_path / f"job{len(jobs)}"
        directory.mkdir(exist_ok=True)
        if program is not None:
            (directory / "program.py").write_text(textwrap.dedent(program))
        file = ["program.py"] if program is not None else []
        jobs.append(RunningJob(directory, runtime_root, *arguments, *file, **more))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
    shutil.rmtree(runtime_root, ignore_errors=True)


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with (
        StateServer.start(tmp_path_factory.mktemp("state"), job="test") as server,
        pytest.MonkeyPatch.context() as monkeypatch,
        contextlib.ExitStack() as open_clients,
    ):
        connect = Endpoint.connect

        def connect_until_the_end(endpoint: Endpoint, **options: Any) -> redis.Redis:
            client = connect(endpoint, **options)
            # A client that is garbage in a cycle may be collected after its sockets, which then warn: a failed test.
            open_clients.callback(client.close)
            return client

        monkeypatch.setattr(Endpoint, "connect", connect_until_the_end)
        yield server


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver library of our own: see tests/integration/fake_nvml.c."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "integration" / "fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return folder


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True).returncode:
        pytest.skip("this needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
