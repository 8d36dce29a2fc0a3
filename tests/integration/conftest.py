"""Real servers for the tests that need one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.kvstore.server import StateServer


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="test") as server:
        yield server


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
