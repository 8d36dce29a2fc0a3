"""State without a job, within one test process."""

from __future__ import annotations

import os
from pathlib import Path

from laggard.kvstore.state.local_state import CHUNK_BYTES, LOCAL_STATE, FileLayout
from laggard.kvstore.state.mapping import State


def fresh_local_state(run: str = "a run", chunk_bytes: int = CHUNK_BYTES) -> State:
    """Return State in the file that the environment names, as a process of a run would get it."""
    path = Path(os.environ[LOCAL_STATE])
    launch = FileLayout.begin_launch(path, run)
    state = State.__new__(State)
    state._launch, state._layout = launch, FileLayout(path, launch, chunk_bytes)
    return state
