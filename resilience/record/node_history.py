"""What the jobs of a site have noted about its nodes, as JSON lines. What is not valid is left out.

The lines lie in a folder that the nodes share, or in the site's own server. Each of these says whose lines count, and
yields a bounded part of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol

import redis

from laggard.records import plain, record_of
from laggard.resilience.decision.roster import MEMORY_S
from laggard.resilience.decision.site import Sighting
from laggard.resilience.errors import NodeHistoryError
from laggard.resilience.text import printable

_log = logging.getLogger("laggard.nodes")

MAX_WORDS = 300  # characters of a reason
_MOST_HOURS = MEMORY_S / 3600
_OF_OPERATORS = frozenset({"cleared", "pinned"})


class Lines(NamedTuple):
    """What was noted in one place."""

    text: str
    where: str
    by_operator: bool  # whether it was written by somebody who may clear and pin nodes


class Place(Protocol):
    """Where the lines lie."""

    def read(self) -> Iterable[Lines]:
        """Yield those that count."""
        ...

    def add(self, name: str, text: str, *, by_operator: bool) -> None:
        """Add what a job of this name has noted, or an operator."""
        ...


class NodeHistory:
    """Reads what jobs have noted, and adds to it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self) -> list[Sighting]:
        """Return what counts."""
        with _errors_of_places():
            return [
                each
                for lines in self._place.read()
                for each in _sightings(lines)
                if lines.by_operator or each.kind not in _OF_OPERATORS
            ]

    def add(self, name: str, *sightings: Sighting) -> None:
        """Add what a job of this name has noted."""
        text = "".join(json.dumps(plain(replace(each, why=each.why[:MAX_WORDS]))) + "\n" for each in sightings)
        if text:
            with _errors_of_places():
                self._place.add(name, text, by_operator=any(each.kind in _OF_OPERATORS for each in sightings))


@contextmanager
def _errors_of_places() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NodeHistoryError(error.strerror or str(error)) from error
    except redis.exceptions.NoPermissionError as error:
        raise NodeHistoryError("the server's access list does not allow it") from error
    except redis.RedisError as error:
        raise NodeHistoryError(str(error)) from error


def _sightings(lines: Lines) -> list[Sighting]:
    found, wrong = [], 0
    for line in lines.text.splitlines():
        try:
            sighting = record_of(Sighting, json.loads(line), printable)
            found.append(
                replace(sighting, why=sighting.why[:MAX_WORDS], hours=min(max(0.0, sighting.hours), _MOST_HOURS))
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            wrong += 1
    if wrong:
        _log.warning("%s has %d lines that are not valid; they do not count", lines.where, wrong)
    return found
