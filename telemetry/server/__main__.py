"""``python -m laggard.telemetry.server``: serve the telemetry of the job in the environment, or of dumps."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import redis

from laggard.errors import LaggardError
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import LAUNCH, JobEnvironment
from laggard.logs import configure_logging
from laggard.telemetry.server.runtime import serve_dump, serve_job
from laggard.telemetry.settings import TelemetrySettings, job_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input closes; print an expected failure as one line."""
    parser = argparse.ArgumentParser(prog="python -m laggard.telemetry.server", description=__doc__)
    parser.add_argument("--port", type=int, help="port, 0 for a free one (default: the settings' aggregator_port)")
    parser.add_argument("--dump", type=Path, nargs="+", metavar="PATH", help="dumps, or folders of dumps, to serve")
    given = parser.parse_args(arguments)
    configure_logging()
    os.environ.setdefault(LAUNCH, "0")  # it serves all launches, and must not be ended with one
    try:
        settings = TelemetrySettings() if given.dump else job_settings(JobEnvironment.current())
        port = settings.aggregator_port if given.port is None else given.port
        if given.dump:
            serve_dump(given.dump, settings, port)
        else:
            serve_job(current_session(), settings, port)
    except (LaggardError, redis.RedisError) as error:
        sys.stderr.write(f"telemetry server: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
