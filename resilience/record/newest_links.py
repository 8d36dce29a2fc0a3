"""The newest reading of each link, from the reports of the nodes, for the record of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from laggard.collectors.links.collector import LinkReport
from laggard.kvstore.series.streams import Sample
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.link_matrix import LEAF, SEND_TIME, Link

# Of a node with eight partners each there are so many in a launch of 2,500 nodes.
MAX_LINKS = 20_000
_SECOND_US = 1_000_000


@dataclass(slots=True)
class NewestLinks:
    """The newest reading of each link in one launch, as far as its transfer had as many bytes as transfers have now."""

    max_links: int
    # Unix time in microseconds, and seconds, by sender and receiver
    readings: dict[Link, tuple[int, float]] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)  # the leaf switch of each node that knows its own
    _size: tuple[int, int | None] = (0, None)  # since which round transfers have how many bytes

    def add(self, host: str, report: LinkReport, time_us: int) -> None:
        """Take a node's report."""
        if report.leaf:
            self.leaves[host] = report.leaf
        for each in report.readings:
            since, n_bytes = self._size
            if each.n_bytes != n_bytes:
                if each.round < since:
                    continue  # a late report of a round before the size changed
                self._size = each.round, each.n_bytes
                self.readings.clear()
            link = each.sender, each.receiver
            if link in self.readings or len(self.readings) < self.max_links:
                self.readings[link] = time_us, each.duration_s


class LinkLog:
    """The newest readings of each launch, as many launches as there is room for."""

    def __init__(self, max_links: int = MAX_LINKS) -> None:
        self._max_links = max_links
        self._launches: dict[int, NewestLinks] = {}

    def add(self, sample: Sample) -> None:
        """Take a node's report, as the state server has it."""
        report = LinkReport.of_tags(sample.tags)
        links = self._launches.setdefault(report.launch, NewestLinks(self._max_links))
        links.add(sample.tags["host"], report, round(sample.time_s * _SECOND_US))
        while sum(len(each.readings) for each in self._launches.values()) > self._max_links:  # there are several then
            del self._launches[min(self._launches)]

    def series(self) -> Iterator[TimeSeries]:
        """Yield the readings as a telemetry dump has them: one series of each link, with one sample a launch."""
        samples: dict[tuple[str, str, str, str], list[tuple[int, float]]] = {}
        for _, links in sorted(self._launches.items()):
            for (sender, receiver), reading in links.readings.items():
                samples.setdefault((SEND_TIME, sender, "peer", receiver), []).append(reading)
            times = {sender: time_us for (sender, _), (time_us, _) in links.readings.items()}
            for host, leaf in links.leaves.items():
                if host in times:
                    samples.setdefault((LEAF, host, "leaf", leaf), []).append((times[host], 1.0))
        for (metric, host, tag, value), found in samples.items():
            times_us, values = zip(*sorted(found), strict=True)
            yield TimeSeries(metric, {"host": host, tag: value}, np.array(times_us, np.int64), np.array(values))
