"""The logs of a job that failed: the end of each process's log, kept when the nodes' folders go."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

LOGS = "logs"


def save_logs(runtime_dir: Path, logs: Mapping[str, Mapping[str, str]]) -> None:
    """Write the logs of each host to its own folder, readable only by this user."""
    for host, texts in logs.items():
        if not texts:
            continue
        folder = runtime_dir / LOGS / Path(host).name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / Path(name).name).write_text(text, errors="replace")


def move_logs(runtime_dir: Path, record: Path) -> Path | None:
    """Move the logs into the job's record; return where they are, or None if there are none."""
    logs = runtime_dir / LOGS
    return Path(shutil.move(logs, record / LOGS)) if logs.is_dir() else None
