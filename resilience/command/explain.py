"""``laggard explain``."""

from __future__ import annotations

import time
from pathlib import Path

import click
import redis

from laggard.resilience.command.kept_jobs import kept_job
from laggard.resilience.errors import UsageError
from laggard.resilience.record.effective_time import effective_time
from laggard.resilience.record.journal import JOURNAL_FILE, JournalError, read_journal
from laggard.resilience.record.running_jobs import RunningJob, choose, running_jobs
from laggard.resilience.record.timeline import timeline_of_entries
from laggard.resilience.views.source import running_timeline
from laggard.resilience.views.story import story


@click.command(short_help="Tell a job's story: what it was worth, and where the rest went.")
@click.argument("job", required=False, metavar="[JOB]")
def explain(job: str | None) -> int:
    """Tell a job's story in at most twenty lines: what it was worth, each loss with its cause, and what to do."""
    # Effective training time is the time that became progress and was kept. It is measured by the steps that the
    # program reports with Job.current().progress(step), or else by its commits to State.
    # JOB is the name of a running job or of one of the last 20 jobs, as 'laggard status' and the end of a job print it;
    # the program's name alone selects its newest job. It may also be the folder of a job's record or a state directory.
    # Without it, the running job is told of, or else the newest one.
    running = _running(job)
    lines = _of_running(running) if running else _of_record(kept_job(job))
    click.echo("\n".join(lines))
    return 0


def _running(wanted: str | None) -> RunningJob | None:
    if wanted is not None and Path(wanted).exists():
        return None
    found = [job for job in running_jobs() if wanted is None or job.goes_by(wanted)]
    return choose(found, wanted) if found else None


def _of_running(job: RunningJob) -> list[str]:
    try:
        timeline = running_timeline(job)
    except redis.RedisError as error:
        raise UsageError(
            f"{job.full_name} does not answer as expected ({error}): unless it has just ended, try again in seconds"
        ) from error
    return story(timeline, effective_time(timeline, time.time()), running=True)


def _of_record(record: Path) -> list[str]:
    try:
        timeline = timeline_of_entries(read_journal(record / JOURNAL_FILE))
    except JournalError as error:
        raise UsageError(str(error)) from error
    return story(timeline, effective_time(timeline), running=False)
