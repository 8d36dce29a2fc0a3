"""The running jobs of this user, as found from any terminal on any of their nodes.

On each of its nodes a job has a private folder, ``laggard-<id>``, with the endpoint file that its processes use. No
other registry is needed: only the folder's owner can open it, and a job whose state server does not answer has ended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import EndpointFileError
from laggard.resilience.errors import UsageError
from laggard.resilience.folders import PREFIX, runtime_root
from laggard.resilience.record.journal import published_entries
from laggard.resilience.text import abbreviated
from laggard.telemetry.course import JobBegan

ENDPOINT = "endpoint.json"
ANSWER_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job."""

    name: str
    id: str
    folder: Path  # the job's private folder on this machine
    endpoint: Endpoint  # its state server, as reached from here

    @property
    def full_name(self) -> str:
        """Name and id."""
        return f"{self.name}-{self.id}"

    def goes_by(self, wanted: str) -> bool:
        """Return whether this is its name, its id, or both."""
        return wanted in {self.full_name, self.name, self.id}

    def has_ended(self) -> bool:
        """Whether the job has removed its endpoint files; its state may remain."""
        return not any(self.folder.glob(f"*/{ENDPOINT}"))


def running_jobs(root: Path | None = None) -> list[RunningJob]:
    """Return this user's running jobs, sorted by name."""
    folders = (runtime_root() if root is None else root).glob(f"{PREFIX}*")
    found = (_job_in(folder) for folder in folders if _is_private(folder))
    return sorted((job for job in found if job is not None), key=lambda job: job.full_name)


def choose(jobs: Sequence[RunningJob], wanted: str | None) -> RunningJob:
    """Return the job of that name or id; without one, the only job."""
    if not jobs:
        where = f"{runtime_root()}/{PREFIX}*"
        raise UsageError(
            f"no job of yours is running on this machine (none in {where}): start one with 'laggard PROGRAM', or log "
            "in to a node of the job; 'laggard report' shows a job that has ended"
        )
    names = abbreviated([job.full_name for job in jobs])
    matching = [job for job in jobs if wanted is None or job.goes_by(wanted)]
    if not matching:
        raise UsageError(f"no job {wanted!r} is running on this machine; running: {names}")
    if len(matching) > 1:
        raise UsageError(
            f"{len(matching)} jobs are running: name one of {abbreviated([job.full_name for job in matching])}"
        )
    return matching[0]


def record_of_running(wanted: str) -> Path | None:
    """Return the folder of a running job's record; None if there is no such job, or no record on this machine."""
    for job in running_jobs():
        if job.goes_by(wanted):
            with job.endpoint.connect(timeout_s=ANSWER_DEADLINE_S) as client:
                entries = published_entries(client, job.endpoint)
            begun = entries[0].record if entries else None
            if isinstance(begun, JobBegan) and begun.folder and Path(begun.folder).exists():
                return Path(begun.folder)
    return None


def _is_private(folder: Path) -> bool:
    """Whether it is a folder of this user that no other user can write to; a link is not."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _job_in(folder: Path) -> RunningJob | None:
    for file in sorted(folder.glob(f"*/{ENDPOINT}")):
        try:
            endpoint = Endpoint.load(file)
            with endpoint.connect(timeout_s=ANSWER_DEADLINE_S) as client:
                client.ping()
        except (EndpointFileError, redis.RedisError):
            continue  # left behind by a job that was killed
        return RunningJob(endpoint.job, folder.name.removeprefix(PREFIX), folder, endpoint)
    return None
