"""``laggard replay`` and ``laggard grafana``: a job's telemetry after it has ended, and in Grafana."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click

from laggard.resilience.errors import UsageError
from laggard.telemetry.settings import TelemetrySettings


@click.command(short_help="Serve telemetry dumps: their page, and Grafana.")
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
    """Serve telemetry dumps as if their job were still running: the page in a browser, and Grafana."""
    # DUMP is a file or a folder of files. Stop with Ctrl-C.
    from laggard.telemetry.errors import DumpError, TelemetryServerError
    from laggard.telemetry.server.runtime import serve_dump  # the web server's libraries are slow to load

    try:
        serve_dump(dumps, TelemetrySettings(), port)
    except (DumpError, TelemetryServerError) as error:
        raise click.ClickException(str(error)) from error
    return 0


@click.command(short_help="Write the configuration of Grafana and Prometheus.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--url",
    default=f"http://localhost:{TelemetrySettings().aggregator_port}",
    show_default=True,
    metavar="URL",
    help="Address at which Grafana and Prometheus reach the telemetry server.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File with the server's token, without which it does not answer if reading needs the token. The job keeps it "
    "beside its endpoint file.",
)
def grafana(directory: Path, url: str, token_file: Path | None) -> int:
    """Write Grafana's data source and dashboards to DIR, and Prometheus' scrape job and alert rules."""
    # While the job runs, or is replayed, the dashboards are fitted to it: to its metrics, its size and its time.
    # Start Grafana with GF_PATHS_PROVISIONING=DIR/provisioning, Prometheus with
    # --config.file=DIR/prometheus/prometheus.yml.
    from laggard.telemetry.errors import ServerUnreachableError
    from laggard.telemetry.grafana.provisioning import write_grafana
    from laggard.telemetry.grafana.server_client import read_shape
    from laggard.telemetry.prometheus import write_prometheus

    _require_url(url)
    try:
        token = "" if token_file is None else token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {token_file}: {error}; name the file telemetry-token of the job") from error
    shape, notice = None, ""
    try:
        shape = read_shape(url, token)
    except ServerUnreachableError as error:
        notice = f"{error}; the dashboards are for any job: run this again while it runs"
    try:
        written = [
            *write_grafana(directory, url, token, shape),
            *write_prometheus(directory / "prometheus", url, token),
        ]
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}; name another folder") from error
    for path in written:
        click.echo(path)
    if notice:
        click.echo(notice, err=True)
    return 0


def _require_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        sound = False
    if not sound:
        raise UsageError(f"--url {url} is not an address: use http://HOST:PORT")
