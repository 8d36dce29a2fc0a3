"""Logging of laggard's own processes: standard ``logging`` under ``laggard.*``.

The command logs warnings to standard error; ``--verbose`` or ``LAGGARD_LOG=debug`` shows more. The processes that it
starts on the nodes log to files in their node's private folder; those of a job that failed are kept with its record. A
user's program configures logging as it likes: importing laggard adds no handler.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from laggard.errors import LaggardError

LOG_VARIABLE = "LAGGARD_LOG"
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(process)d]: %(message)s"
LAST_BYTES = 4096  # more than a line
MAX_LINE = 300  # a few lines of a terminal
# What is kept of the logs of a job that failed: the end of each, of the newest that have something in them.
END_BYTES = 1 << 16
MAX_LOGS = 40  # of a node: its own, and Ray's workers'
_PATTERNS = ("*.log", "ray/session_2*/logs/*.err", "ray/session_2*/logs/*.out")


class LogLevelError(LaggardError, ValueError):
    """``LAGGARD_LOG`` names no level."""

    value: str
    template = f"{LOG_VARIABLE}={{value}} is not a level: use {', '.join(LEVELS[:-1])} or {LEVELS[-1]}"


def configure_logging(default: str = "info") -> None:
    """Log to standard error what is of the level that ``LAGGARD_LOG`` names, or above it."""
    level = os.environ.get(LOG_VARIABLE) or default
    if level.lower() not in LEVELS:
        raise LogLevelError(level)
    logger = logging.getLogger("laggard")
    logger.setLevel(level.upper())
    logger.propagate = False
    _replace_handlers(logger, logging.StreamHandler(sys.stderr))


class _LogFile(logging.FileHandler):
    """A log file. On a full disk it ends where the disk did: a traceback for each line of it would help nobody."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def log_to_file(path: Path) -> None:
    """Log to a file, made with mode 0600, in place of standard error."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    _replace_handlers(logging.getLogger("laggard"), _LogFile(path))


def last_line_of(output: bytes) -> str:
    """Return the last line that is not blank; empty if there is none."""
    lines = (line.decode(errors="replace").strip() for line in reversed(output.splitlines()))
    return next(filter(None, lines), "")


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank; empty where there is none."""
    # Of a traceback this is the line that names the exception.
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            return last_line_of(file.read())[:MAX_LINE]
    except OSError:
        return ""


def ends_of_logs(directory: Path) -> dict[str, str]:
    """Return the end of each log in a node's private folder, Ray's too, by file name."""
    found = [path for pattern in _PATTERNS for path in directory.glob(pattern) if path.stat().st_size]
    ends = {}
    for path in sorted(found, key=lambda path: path.stat().st_mtime)[-MAX_LOGS:]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - END_BYTES))
            ends[path.name] = file.read().decode(errors="replace")
    return ends


def _replace_handlers(logger: logging.Logger, handler: logging.Handler) -> None:
    handler.setFormatter(logging.Formatter(_FORMAT))
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
