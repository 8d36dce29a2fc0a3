"""``laggard report``."""

from __future__ import annotations

from pathlib import Path

import click

from laggard.resilience.command.kept_jobs import kept_job
from laggard.resilience.errors import UsageError
from laggard.resilience.record.journal import JournalError


def make_report(record: Path) -> None:
    """Make the report of the job whose record is in a folder, there."""
    from laggard.resilience.report.inputs import read_inputs  # slow to load, and needed only at the end of a job
    from laggard.resilience.report.page import write_report

    write_report(read_inputs(record), record)


@click.command(short_help="Write the report of a job: an HTML page.")
@click.argument("job", required=False, metavar="[JOB]")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to write it.  [default: the record's folder]",
)
def report(job: str | None, output: Path | None) -> int:
    """Write the report of a job: a self-contained HTML page."""
    # JOB is the name of a running job or of one of the last 20 jobs, as 'laggard status' and the end of a job print it;
    # the program's name alone selects its newest job. It may also be the folder of a job's record or a state directory.
    # Without it, the report is of the newest job.
    # The report shows the nodes of each launch and the excluded nodes, each device's probe times against its peers'
    # with the verdicts, utilisation, where the time went, and the savings of the relaunches.
    from laggard.resilience.report.inputs import read_inputs  # slow to load
    from laggard.resilience.report.page import write_report
    from laggard.telemetry.errors import DumpError

    source = kept_job(job)
    try:
        inputs = read_inputs(source)
        folder = output or source
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        click.echo(write_report(inputs, folder))
    except (JournalError, DumpError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}; name another folder with -o") from error
    return 0
