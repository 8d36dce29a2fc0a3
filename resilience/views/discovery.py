"""The jobs that this user runs, seen from any terminal of any of their nodes.

Every node of a job has its private folder below the job's own, ``laggard-<id>``, with the endpoint file that the
job's processes use. So there is nothing else to keep: who can open that folder, its owner, finds the job, and a job
whose state server does not answer is none any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from kvstore.endpoint import Endpoint
from kvstore.errors import EndpointFileError
from resilience.folders import PREFIX, runtime_root
from resilience.options import UsageError
from resilience.record.journal import published_entries

__all__ = ["RunningJob", "choose", "record_of_running", "running_jobs"]

ENDPOINT = "endpoint.json"
ANSWER_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs.

    Attributes
    ----------
    name, id
        The program's name, and what keeps apart jobs of the same one.
    folder
        The job's private folder on this machine.
    endpoint
        Of its state server, as seen from here.
    """

    name: str
    id: str
    folder: Path
    endpoint: Endpoint

    @property
    def full_name(self) -> str:
        """Name and id."""
        return f"{self.name}-{self.id}"

    def has_ended(self) -> bool:
        """Whether it has put its folder away; State may be left in it."""
        return not any(self.folder.glob(f"*/{ENDPOINT}"))


def running_jobs(root: Path | None = None) -> list[RunningJob]:
    """Return this user's jobs that run, in the order of their names."""
    folders = (runtime_root() if root is None else root).glob(f"{PREFIX}*")
    found = (_job_in(folder) for folder in folders if _is_private(folder))
    return sorted((job for job in found if job is not None), key=lambda job: job.full_name)


def choose(jobs: Sequence[RunningJob], wanted: str | None) -> RunningJob:
    """Return the job that is meant: the one of that name or id, or the only one.

    Raises
    ------
    UsageError
        If there is none, or more than one.
    """
    if not jobs:
        where = f"{runtime_root()}/{PREFIX}*"
        raise UsageError(
            f"no job of yours runs on this machine (none in {where}): start one with 'laggard PROGRAM', or log in to "
            "one of its nodes; 'laggard report' shows one that has ended"
        )
    names = ", ".join(job.full_name for job in jobs)
    meant = [job for job in jobs if wanted is None or wanted in {job.full_name, job.name, job.id}]
    if not meant:
        raise UsageError(f"no job {wanted!r} runs on this machine: those that do are {names}")
    if len(meant) > 1:
        raise UsageError(f"{len(meant)} jobs run: name one of {', '.join(job.full_name for job in meant)}")
    return meant[0]


def record_of_running(wanted: str) -> Path | None:
    """Return the folder of a running job's record; None if there is no such job, or it keeps no record here."""
    for job in running_jobs():
        if wanted in {job.full_name, job.name, job.id}:
            with job.endpoint.connect(timeout_s=ANSWER_DEADLINE_S) as client:
                entries = published_entries(client, job.endpoint)
            if entries and (folder := entries[0].fields["folder"]) and Path(folder).exists():
                return Path(folder)
    return None


def _is_private(folder: Path) -> bool:
    """Whether it is a folder of ours that nobody else can have put anything into; a link may lead anywhere."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


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
