"""Commands that show a job's telemetry: after it is gone, and in Grafana."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.observation import LOOPBACK
from resilience.options import UsageError
from telemetry.settings import TelemetrySettings

__all__ = ["grafana", "replay"]


@click.command(short_help="Serve dumps to Grafana as if their job still ran.")
@click.argument("dumps", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="DUMP...")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=TelemetrySettings().aggregator_port,
    show_default=True,
    metavar="PORT",
    help="Port at this machine's loopback address.",
)
def replay(dumps: tuple[Path, ...], port: int) -> int:
    """Serve DUMPs, files or folders of them, to Grafana as if their job still ran.

    Ctrl-C ends it.
    """
    from telemetry.dump import DumpError
    from telemetry.server.runtime import ServerError, serve_dump  # the web server's libraries take their time to load

    try:
        serve_dump(dumps, TelemetrySettings(), LOOPBACK, port)
    except (DumpError, ServerError) as error:
        raise click.ClickException(str(error)) from error
    return 0


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--url",
    default=f"http://localhost:{TelemetrySettings().aggregator_port}",
    show_default=True,
    metavar="URL",
    help="Where Grafana reaches the telemetry server.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The server's token, so that notes made in Grafana are accepted; it stands beside the job's endpoint file.",
)
def grafana(directory: Path, url: str, token_file: Path | None) -> int:
    """Write Grafana's data source and dashboards to DIR.

    Start Grafana with GF_PATHS_PROVISIONING=DIR/provisioning.
    """
    from telemetry.dashboards import write_grafana

    token = "" if token_file is None else token_file.read_text().strip()
    try:
        written = write_grafana(directory, url, token)
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}; name another folder") from error
    for path in written:
        click.echo(path)
    return 0
