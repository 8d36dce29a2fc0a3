"""Look at a job's telemetry after the job is gone: serve its dumps to Grafana.

A job writes dumps to its `dump_dir` when it ends, or when it calls `AnalysisClient().db_dump()`. Any number of dumps,
from any nodes and times, are served together:

    python examples/mini_telemetry.py dumps/
    LAGGARD_TELEMETRY_CONFIG=examples/telemetry.yaml python examples/mini_telemetry.py
    python examples/mini_telemetry.py --demo --grafana grafana/

The second command serves the `dump_dir` of the settings, at their port. The third first generates ten minutes of two
nodes with one slow device, and writes Grafana's provisioning: start Grafana with
GF_PATHS_PROVISIONING=grafana/provisioning. Ctrl-C ends the server.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from laggard.interrupts import ended_by_interrupts

with ended_by_interrupts():  # Ctrl-C prints no traceback here either
    import numpy as np

    from laggard.kvstore.series.timeseries import TimeSeries
    from laggard.telemetry.dumps.writing import write_dump
    from laggard.telemetry.errors import DumpError, SettingsError, TelemetryServerError
    from laggard.telemetry.events import Event, series_of_events
    from laggard.telemetry.grafana.provisioning import write_grafana
    from laggard.telemetry.server.runtime import serve_dump
    from laggard.telemetry.settings import TELEMETRY_CONFIG, TelemetrySettings, load_settings

DEMO_S = 600
INTERVAL_S = 0.5
MAX_PORT = 65535


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Serve dumps of a job's telemetry to Grafana.")
    settings = configured(parser)
    dumps = f"files, or folders of files (default: the dump_dir in the settings that {TELEMETRY_CONFIG} names)"
    parser.add_argument("dumps", type=Path, nargs="*", help=dumps)
    port = settings.aggregator_port
    parser.add_argument("--port", type=int, default=port, help="port at 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--demo", action="store_true", help="generate a dump, for a first look")
    parser.add_argument("--grafana", type=Path, metavar="DIR", help="write Grafana's provisioning there")
    given = parser.parse_args(arguments)
    if not 0 <= given.port <= MAX_PORT:
        parser.exit(2, f"--port {given.port} is not a valid port: give 1 to {MAX_PORT}, or 0 for a free one\n")
    if not given.dumps and not given.demo and settings.dump_dir:
        given.dumps = [Path(settings.dump_dir)]
    if not given.dumps and not given.demo:
        way_out = f"set {TELEMETRY_CONFIG} to a file with a dump_dir, or generate one with --demo"
        parser.exit(2, f"name a dump, {way_out}\n")
    return given


def configured(parser: argparse.ArgumentParser) -> TelemetrySettings:
    """Return the telemetry settings that the environment names."""
    named = os.environ.get(TELEMETRY_CONFIG)
    try:
        return load_settings(Path(named)) if named else TelemetrySettings()
    except SettingsError as error:
        parser.exit(2, f"{error}\n")


def made_up(now_s: float) -> Iterator[TimeSeries]:
    """Yield the readings of two nodes of two devices; node2's device 1 becomes slow halfway."""
    random = np.random.default_rng(1)
    times_us = (np.arange(now_s - DEMO_S, now_s, INTERVAL_S) * 1e6).astype(np.int64)
    late = np.arange(len(times_us)) > len(times_us) // 2
    for host in ("node1", "node2"):
        load = random.normal(8, 0.5, len(times_us)).round(2)
        yield TimeSeries("load_average", {"host": host}, times_us, load)
        for gpu in ("0", "1"):
            slow = late & (host == "node2") & (gpu == "1")
            tags = {"host": host, "gpu": gpu}
            watts = random.normal(np.where(slow, 180.0, 300.0), 5.0).round(1)
            seconds = random.normal(np.where(slow, 0.016, 0.010), 0.0002).round(6)
            yield TimeSeries("DevicePowerUsage", tags, times_us, watts)
            yield TimeSeries("DeviceUtilization", tags, times_us, random.integers(92, 100, len(times_us)).astype(float))
            yield TimeSeries("gpu-probe-time", tags, times_us, seconds)
    accused_us = int(times_us[len(times_us) // 2]) + 9_000_000
    yield from series_of_events([Event(accused_us, "verdict", "gpu 1 of node2 takes 1.6 times as long", "node2", "1")])


def main() -> int:
    """Serve until standard input closes."""
    given = parse_arguments()
    if given.grafana:
        for path in write_grafana(given.grafana, f"http://localhost:{given.port}"):
            print(f"wrote {path}")
    with tempfile.TemporaryDirectory() as directory:
        if given.demo:
            now_s = time.time()
            given.dumps.append(write_dump(directory, "demo", now_s, made_up(now_s)))
        try:
            serve_dump(given.dumps, TelemetrySettings(), given.port)
        except (DumpError, TelemetryServerError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
