"""Look at a job's telemetry after the job is gone: serve its dumps to Grafana.

    python examples/mini_telemetry.py dumps/
    LAGGARD_TELEMETRY_CONFIG=examples/telemetry.yaml python examples/mini_telemetry.py

A job writes dumps to its `dump_dir` when it ends, or when it calls `AnalysisClient().db_dump()`. Any number of dumps,
from any nodes and times, are served together. The second command serves the `dump_dir` of the settings, at their port.
Ctrl-C ends the server.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

TELEMETRY_CONFIG = "LAGGARD_TELEMETRY_CONFIG"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, and the settings that the environment names."""
    parser = argparse.ArgumentParser(description="Serve dumps of a job's telemetry to Grafana.")
    settings: dict[str, Any] = {}
    if TELEMETRY_CONFIG in os.environ:
        try:
            settings = yaml.safe_load(Path(os.environ[TELEMETRY_CONFIG]).read_text("utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            parser.exit(2, f"{os.environ[TELEMETRY_CONFIG]} cannot be read: {' '.join(str(error).split())}\n")
    dumps = [settings["dump_dir"]] if settings.get("dump_dir") else []
    where = f"(default: the dump_dir of the settings that {TELEMETRY_CONFIG} names)"
    parser.add_argument("dumps", nargs="*", default=dumps, help=f"files, or folders of files {where}")
    parser.add_argument("--port", default=settings.get("aggregator_port", 4242), help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    if not given.dumps:
        parser.exit(2, f"name a dump, or set {TELEMETRY_CONFIG} to a file with a dump_dir\n")
    return given


if __name__ == "__main__":
    given = parse_arguments()
    command = [sys.executable, "-m", "laggard", "replay", f"--port={given.port}", *given.dumps]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is needed
