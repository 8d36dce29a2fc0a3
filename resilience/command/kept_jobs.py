"""Which record of a job a command's argument means."""

from __future__ import annotations

from pathlib import Path

from laggard.resilience.errors import UsageError
from laggard.resilience.record.job_record import records
from laggard.resilience.record.journal import JOURNAL_FILE
from laggard.resilience.record.running_jobs import record_of_running
from laggard.system.user import state_home


def kept_job(given: str | None) -> Path:
    """Return the record that an argument means; without one, that of the newest job."""
    kept = records(state_home())
    if given is None:
        if not kept:
            raise UsageError(f"no job record in {state_home()}: name the folder of one")
        return kept[0]
    path = Path(given)
    if path.exists():
        if (path / JOURNAL_FILE).exists():
            return path
        if inside := records(path / "reports"):
            return inside[0]
        raise UsageError(f"{path} has no {JOURNAL_FILE}: name a job, or the folder of its record")
    if (running := record_of_running(given)) is not None:
        return running
    for folder in kept:
        name, _, job_id = folder.name.rpartition("-")
        if given in {folder.name, name, job_id}:
            return folder
    known = ", ".join(folder.name for folder in kept[:5]) or "none"
    raise UsageError(f"{given!r} is not a running job, a job kept in {state_home()} ({known}) or a folder")
