"""What a process of a job, or one without a job, has around it, within one test process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import Endpoint, current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.state.local_state import CHUNK_BYTES, LOCAL_STATE, FileLayout, local_state
from laggard.kvstore.state.mapping import State, _of_file


def fresh_local_state(run: str = "a run", chunk_bytes: int = CHUNK_BYTES) -> State:
    """Return State in the file that the environment names, as a process of a run would get it."""
    path = Path(os.environ[LOCAL_STATE])
    launch, _ = FileLayout.begin_launch(path, run)
    state = State.__new__(State)
    state._layout = FileLayout(path, launch, chunk_bytes)
    return state


def begin_local_launch(path: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a process of a run of a program without a job, whose State is in a file."""
    monkeypatch.setenv(LOCAL_STATE, str(path))
    monkeypatch.setenv("LAGGARD_LOCAL_LAUNCH", str(FileLayout.begin_launch(path, run)[0]))
    local_state.cache_clear()
    _of_file.cache_clear()


@contextmanager
def in_job(folder: Path, endpoint: Endpoint) -> Iterator[None]:
    """Be a process of a job's first launch on node1."""
    folder.chmod(0o700)
    endpoint.save(folder / "endpoint.json")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in {ENDPOINT_FILE: str(folder / "endpoint.json"), LAUNCH: "0", NODE: "node1"}.items():
            monkeypatch.setenv(name, value)
        current_session.cache_clear()
        yield
        current_session.cache_clear()
