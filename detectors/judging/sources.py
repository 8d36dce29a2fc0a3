"""Where a watcher's samples come from: a metric's stream in the state server, or the telemetry of all nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, Self

import redis

from laggard.collectors.device import DeviceId
from laggard.collectors.group import STRIDE
from laggard.kvstore.client.connection import Session
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.kvstore.series.streams import Refused, Sample, Series
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.gathering import Gathered, gather
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US, now_us

# Small enough for the server to answer others meanwhile, and for neither side to hold a large job's round in one reply.
READ_LIMIT = 5000
# How late a sample may reach its node's store, and how far the nodes' clocks may be apart, together.
MAX_DELAY_S = 5.0
_SHOWN = 80  # characters of what is refused
_HOST = "host"
_STRIDE = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)

Found = tuple[DeviceId, Sample] | Refused


class Source(Protocol):
    """Returns the samples that are new since the last call."""

    def read(self) -> Iterable[Found]:
        """Return new samples, each with the device that it is of, and what was written in place of samples."""


def device_of(tags: Mapping[str, str]) -> DeviceId:
    """Return the device that a collector's sample is of; its name is empty if it is of the whole node."""
    return tags[_HOST], tags.get("gpu", "")


class StreamSource:
    """What collectors write."""

    def __init__(
        self,
        session: Session,
        metric: str,
        *,
        after: str | None = None,
        place: Callable[[Mapping[str, str]], DeviceId] = device_of,
        only: Mapping[str, str] = MappingProxyType({}),
        series: Series | None = None,
    ) -> None:
        self._series = series or Series(session.client, session.endpoint, session.environment.launch)
        self._metric = metric  # which metric
        self._last_id = self._series.last_id(metric) if after is None else after
        self._place = place  # returns the device of a sample from its tags
        self._only = only.items()  # tags that a sample must have; others are skipped

    def read(self) -> Iterator[Found]:
        """Yield new samples."""
        more = True
        while more:
            found = self._series.read(self._metric, self._last_id, limit=READ_LIMIT)
            for self._last_id, sample in found:
                if isinstance(sample, Refused):
                    yield sample
                elif self._only <= sample.tags.items():
                    yield self._placed(sample)
            more = len(found) == READ_LIMIT

    def _placed(self, sample: Sample) -> Found:
        try:
            if _STRIDE.fullmatch(sample.tags.get(STRIDE, "1")):
                return self._place(sample.tags), sample
        except ValueError:
            pass
        return Refused(sample.tags[_HOST], "malformed", f"the tags {sample.tags}"[:_SHOWN])


class FedSource:
    """What programs feed with :meth:`laggard.Telemetry.add_data`, from the stores of all nodes.

    A sample's device is its host and the values of its other tags, for instance ``("node1", "3")`` for a metric with a
    tag ``rank``.
    """

    def __init__(
        self, session: Session, metric: str, interval_s: float, gather: Callable[..., Gathered] = gather
    ) -> None:
        self._gather = gather
        self._endpoint = session.endpoint
        self._asker: NodeAsker | None = None
        self._client = session.client
        self._metric = metric  # which metric
        self._interval_s = interval_s  # how often to ask the nodes
        self._due_s = time.monotonic()
        self._begun_us = self._newest_us = now_us()  # what was fed before is not judged
        self._seen_us: dict[SeriesKey, int] = {}

    def read(self) -> list[Found]:
        """Return new samples; nothing if the nodes were asked less than an interval ago."""
        if time.monotonic() < self._due_s:
            return []
        self._due_s = time.monotonic() + self._interval_s
        known_us = min(self._newest_us, now_us())  # a program may give its samples times that are yet to come
        start_us = max(self._begun_us, known_us - round(MAX_DELAY_S * SECOND_US))
        try:
            self._asker = self._asker or NodeAsker(self._client, self._endpoint)
            by_host = self._gather(self._asker, [self._metric], start_us, ALL_TIME_US).by_host
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise StateUnavailableError(self._endpoint.host, self._endpoint.port, str(error)) from error
        found: list[Found] = []
        for host, each in ((host, each) for host, series in by_host.items() for each in series):
            key = key_of(each.metric, each.tags)
            new = each.times_us > self._seen_us.get(key, self._begun_us)
            if new.any():
                last_us = int(each.times_us[-1])
                self._seen_us[key] = last_us
                self._newest_us = max(self._newest_us, last_us)
                tags = {name: value for name, value in each.tags.items() if name != STRIDE}  # means nothing here
                place = "/".join(value for name, value in sorted(tags.items()) if name != _HOST)
                sample = Sample(self._metric, last_us / SECOND_US, tuple(each.values[new].tolist()), tags)
                named = tags.get(_HOST, "")
                found.append(((host, place), sample) if named == host else Refused(host, "of another node", named))
        return found


class AnySource:
    """What collectors write; as long as they write nothing, what programs feed."""

    def __init__(self, stream: Source, fed: Source | None) -> None:
        self._stream = stream
        self._fed = fed

    @classmethod
    def of_job(cls, session: Session, metric: str, interval_s: float) -> Self:
        """Return the source of a metric in a job."""
        has_telemetry = session.environment.telemetry_level > 0
        return cls(StreamSource(session, metric), FedSource(session, metric, interval_s) if has_telemetry else None)

    def read(self) -> list[Found]:
        """Return new samples."""
        collected = list(self._stream.read())
        if any(not isinstance(each, Refused) for each in collected):
            self._fed = None  # a collector's samples are in the telemetry, too
        return collected or ([] if self._fed is None else list(self._fed.read()))
