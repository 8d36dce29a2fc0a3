"""Parsing of times and durations in OpenTSDB's formats, to microseconds.

https://opentsdb.net/docs/build/html/user_guide/query/dates.html
"""

from __future__ import annotations

import math
import re
import time

from laggard.telemetry.errors import BadQueryError

SECOND_US = 1_000_000
_DAY_US = 86_400 * SECOND_US
UNITS_US = {
    "ms": 1000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3600 * SECOND_US,
    "d": _DAY_US,
    "w": 7 * _DAY_US,
    "n": 30 * _DAY_US,
    "y": 365 * _DAY_US,
}
_DURATION = re.compile(r"(\d{1,15})(ms|[smhdwny])")
_NUMBER = re.compile(r"\d{1,14}(\.\d{1,9})?")
# OpenTSDB's own rule: a number that needs more than 32 bits is in milliseconds.
_MAX_SECONDS = 2**32 - 1
ALL_TIME_US = 10**14 * 1000
"""Later than any time that can be written."""


def parse_duration(text: str) -> int:
    """Return the length of ``30s``, ``1m``, ``500ms`` in microseconds; a month has 30 days and a year 365."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadQueryError(f"{text!r} is not a duration: write a number and one of {', '.join(UNITS_US)}")
    length_us = int(match[1]) * UNITS_US[match[2]]
    if not 0 < length_us <= ALL_TIME_US:
        raise BadQueryError(f"the duration {text!r} must be above 0 and is limited to 3170 years")
    return length_us


def parse_time(value: object, now_us: int) -> int:
    """Return a time as Unix time in microseconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _from_number(value)
    if not isinstance(value, str) or not value:
        raise BadQueryError(f"{_shown(value)} is not a time")
    text = value.strip()
    if text == "now":
        return now_us
    if text.endswith("-ago"):
        return max(0, now_us - parse_duration(text.removesuffix("-ago")))
    if _NUMBER.fullmatch(text):
        return _from_number(float(text) if "." in text else int(text))
    raise BadQueryError(f"{_shown(text)} is not a time: give Unix seconds or milliseconds, or 1h-ago")


def _from_number(number: float) -> int:
    if not math.isfinite(number) or not 0 <= number <= ALL_TIME_US / 1000:
        raise BadQueryError(f"{_shown(number)} is not a Unix time in seconds or milliseconds")
    return round(number * (SECOND_US if number <= _MAX_SECONDS else 1000))


def _shown(value: object) -> str:
    return repr(value)[:80]


def now_us() -> int:
    """Return the Unix time now in microseconds."""
    return round(time.time() * SECOND_US)
