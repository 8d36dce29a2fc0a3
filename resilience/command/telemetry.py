"""``laggard replay`` and ``laggard grafana``: a job's telemetry after it has ended, and in Grafana."""

from __future__ import annotations

from pathlib import Path

import click

from laggard.resilience.controller.telemetry_processes import LOOPBACK
from laggard.resilience.decision.options import UsageError
from laggard.telemetry.settings import TelemetrySettings

__all__ = ["grafana", "replay"]


@click.command(short_help="Serve telemetry dumps to Grafana.")
@click.argument("dumps", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="DUMP...")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=TelemetrySettings().aggregator_port,
    show_default=True,
    metavar="PORT",
    help="Port to listen on, on the loopback address.",
)
def replay(dumps: tuple[Path, ...], port: int) -> int:
    """Serve telemetry dumps to Grafana as if their job were still running.

    DUMP is a file or a folder of files. Stop with Ctrl-C.
    """
    from laggard.telemetry.errors import DumpError, TelemetryServerError
    from laggard.telemetry.server.runtime import serve_dump  # the web server's libraries are slow to load

    try:
        serve_dump(dumps, TelemetrySettings(), LOOPBACK, port)
    except (DumpError, TelemetryServerError) as error:
        raise click.ClickException(str(error)) from error
    return 0


@click.command(short_help="Write Grafana's data source and dashboards.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--url",
    default=f"http://localhost:{TelemetrySettings().aggregator_port}",
    show_default=True,
    metavar="URL",
    help="Address at which Grafana reaches the telemetry server.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File with the server's token, so that it accepts annotations made in Grafana. The job keeps it beside "
    "its endpoint file.",
)
def grafana(directory: Path, url: str, token_file: Path | None) -> int:
    """Write Grafana's data source and dashboards to DIR.

    Start Grafana with GF_PATHS_PROVISIONING=DIR/provisioning.
    """
    from laggard.telemetry.dashboards import write_grafana

    token = "" if token_file is None else token_file.read_text().strip()
    try:
        written = write_grafana(directory, url, token)
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}; name another folder") from error
    for path in written:
        click.echo(path)
    return 0
