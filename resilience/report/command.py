"""``laggard report``."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.options import UsageError
from resilience.record.journal import JOURNAL_FILE, JournalError
from resilience.record.places import records, state_home
from resilience.views.discovery import record_of_running

__all__ = ["report"]


@click.command(short_help="Make the report of a job: one HTML page, and PNG files.")
@click.argument("job_or_dump", required=False, metavar="[JOB_OR_DUMP]")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to write it.  [default: a job's own folder; for a dump, report-<its name> here]",
)
def report(job_or_dump: str | None, output: Path | None) -> int:
    """Make the report of a job: one HTML page that needs no network, and its pictures as PNG files.

    JOB_OR_DUMP is the name of a job that runs or of one of the last 20, as 'laggard status' and the end of a job tell
    it; the start of a name means the newest job of that program. Or it is a folder: of a job's record, a state
    directory (--state-dir), or one with dumps of telemetry; or one dump (a .csv.gz file). Without it the newest job's
    report is made.

    The report tells which nodes each launch ran on and what was left out, the devices' probe times against their
    peers' with the moment of each verdict, utilisation, lost time, and what relaunches cost and saved.
    """
    from resilience.report.material import read_material  # drawing takes its time to load
    from resilience.report.page import write_report
    from telemetry.dump import DumpError

    source = _source(job_or_dump)
    try:
        material = read_material(source)
        folder = output or (source if (source / JOURNAL_FILE).exists() else Path(f"report-{_stem(source)}"))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        click.echo(write_report(material, folder))
    except (JournalError, DumpError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}; name another folder with -o") from error
    return 0


def _source(given: str | None) -> Path:
    """Return the folder or file that is meant."""
    kept = records(state_home())
    if given is None:
        if not kept:
            raise UsageError(f"there is no record of a job in {state_home()}: name a job's folder, or a dump")
        return kept[0]
    path = Path(given)
    if path.exists():
        inside = [] if (path / JOURNAL_FILE).exists() else records(path / "reports")
        return inside[0] if inside else path
    if (running := record_of_running(given)) is not None:
        return running
    for folder in kept:
        name, _, job_id = folder.name.rpartition("-")
        if given in {folder.name, name, job_id}:
            return folder
    known = ", ".join(folder.name for folder in kept[:5]) or "none"
    raise UsageError(
        f"{given!r} is neither a job that runs, nor one of those kept in {state_home()} ({known}), nor a file or folder"
    )


def _stem(path: Path) -> str:
    return path.resolve().name.removesuffix(".csv.gz")
