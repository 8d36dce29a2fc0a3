"""Readings of links: what the nodes report after each round of transfers, and what that says of nodes and pairs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.collectors.device import DeviceId
from laggard.collectors.links.collector import LinkReport
from laggard.collectors.links.prober import FIRST_BYTES, bytes_for
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import Pair
from laggard.collectors.links.symptoms import LinkSymptoms, cause_of_link, downs_of, together
from laggard.detectors.economics.episode import Episode
from laggard.detectors.evidence import Unreachable
from laggard.detectors.judging.judge import Analysis, Moment
from laggard.detectors.judging.rounds import Round
from laggard.detectors.links.losses import LinkFlaps, LinkLosses
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis, link_of
from laggard.detectors.notices import LinkNotice, Notice, PairUnreachable
from laggard.detectors.verdict import Evidence, Verdict
from laggard.kvstore.control import LaunchRecord

KEPT = "laggard/slow-links"
"""The key of State."""
_CAUSE_ROUNDS = 12  # in which a cause is looked for
_MAX_CALIBRATIONS = 3  # times that the size is corrected by the rate that was seen


class LinkReadings(Analysis):
    """The nodes' reports of their links; each node is a device without a name."""

    def __init__(
        self, analysis: SlowLinkAnalysis, tell_terms: Callable[[int, Sequence[Pair]], None], begun_s: float
    ) -> None:
        self._compared = analysis
        # Tells the nodes how many bytes a transfer has from now on, and which pairs meet in each round
        self._tell_terms = tell_terms
        self._pairs: list[Pair] = []
        self._losses = LinkLosses()
        self._flaps = LinkFlaps(begun_s)
        self._lost: list[Verdict] = []
        self._judged: set[DeviceId] = set()
        self._n_bytes, self._calibrations = FIRST_BYTES, 0
        self._reports: list[tuple[str, LinkReport]] = []
        self._symptoms: dict[str, deque[LinkSymptoms]] = defaultdict(lambda: deque(maxlen=_CAUSE_ROUNDS))
        self._judged_s = deque([begun_s], maxlen=_CAUSE_ROUNDS + 1)
        self._notices: list[Notice] = []
        self._hosts: set[str] = set()

    @property
    def min_slowdown(self) -> float:
        """The smallest slowdown that matters."""
        return self._compared.min_slowdown

    def begin(self, launch: LaunchRecord) -> None:
        """Note which nodes there are."""
        self._hosts = {node.hostname for node in launch.nodes}

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Take a node's report, which is of its own transfers; each has tags of its own."""
        report = LinkReport.of_tags(tags)
        others = {*report.failures, *(each.receiver for each in report.readings)}
        if not others <= self._hosts or not all(_can_be(each, device[0]) for each in report.readings):
            raise ValueError(f"the report of {device[0]} is not one of its own links")
        self._reports.append((device[0], report))
        self._symptoms[device[0]].append(report.symptoms)

    def update(self, readings: Round, moment: Moment) -> list[Verdict] | None:
        """Compare what the nodes have reported since the last call."""
        del readings  # the reports say more
        reports, self._reports = self._reports, []
        self._judged_s.append(moment.now_s)
        self._lost = self._lost_by(reports)
        for host, report in reports:
            self._notices += self._flaps.add(host, downs_of(report.symptoms), moment.now_s)
        by_round: dict[int, list[LinkReading]] = defaultdict(list)
        for _, report in reports:
            for reading in report.readings:
                if reading.n_bytes == self._n_bytes and moment.hidden.isdisjoint((reading.sender, reading.receiver)):
                    by_round[reading.round].append(reading)
        known = [each for number in sorted(by_round) for each in by_round[number]]
        self._judged = {(host, "") for each in known for host in (each.sender, each.receiver)}
        if not self._is_calibrated(known):
            return None
        found = [each for number in sorted(by_round) for each in self._update_round(by_round[number], moment.now_s)]
        pairs = self._compared.pairs_to_meet()
        if pairs != self._pairs:
            self._pairs = pairs
            self._tell_terms(self._n_bytes, pairs)
        return found

    def judged(self, readings: Round) -> Collection[DeviceId]:
        """Return the nodes that had transfers."""
        del readings
        return self._judged

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a node is in."""
        return self._compared.episode(device[0])

    def certain(self) -> list[Verdict]:
        """Return verdicts on nodes that no other node reaches any more."""
        return self._lost

    def take_notices(self) -> Sequence[Notice]:
        """Return what else the rounds show, each thing once."""
        notices, self._notices = self._notices, []
        return notices

    def _update_round(self, readings: Sequence[LinkReading], now_s: float) -> list[Verdict]:
        found = []
        for verdict in self._compared.add_round(readings, now_s):
            link = link_of(verdict)
            if link.kind == "node":
                found.append(replace(verdict, cause=self._cause_of(verdict.host)))
            else:
                self._notices.append(LinkNotice(link, tuple(dict.fromkeys(map(self._cause_of, link.names)))))
        self._notices += self._compared.take_notices()
        return found

    def _cause_of(self, host: str) -> Cause:
        if host not in self._symptoms:
            return UNKNOWN
        peers = [found[-1] for other, found in self._symptoms.items() if other != host]
        seconds = self._judged_s[-1] - self._judged_s[0]
        return cause_of_link(together(self._symptoms[host]), peers, seconds)

    def _lost_by(self, reports: Iterable[tuple[str, LinkReport]]) -> list[Verdict]:
        done, failed = set[tuple[str, str]](), dict[tuple[str, str], str]()
        for host, report in reports:
            done |= {(reading.sender, reading.receiver) for reading in report.readings}
            failed |= {(host, partner): why for partner, why in report.failures.items()}
        losses = self._losses.add_round(done, failed)
        self._notices += [PairUnreachable(pair, why) for pair, why in losses.pairs.items()]
        return [
            Verdict(
                host, None, math.nan, "faulty", Evidence(host, None, Unreachable(why)), self._cause_of(host), "restart"
            )
            for host, why in losses.nodes.items()
        ]

    def _is_calibrated(self, readings: Sequence[LinkReading]) -> bool:
        """Return whether transfers have the right number of bytes; if not, change that."""
        if not readings or self._calibrations == _MAX_CALIBRATIONS:
            return bool(readings)
        self._calibrations += 1
        wanted = bytes_for(statistics.median(each.n_bytes / each.duration_s for each in readings))
        if wanted == self._n_bytes:
            self._calibrations = _MAX_CALIBRATIONS
            return True
        self._n_bytes = wanted
        self._tell_terms(wanted, self._pairs)
        return False


def _can_be(reading: LinkReading, host: str) -> bool:
    """Return whether a reading is one of a node's own, with numbers that can be."""
    has_numbers = 1e-9 < reading.duration_s < 1e6 and reading.n_bytes > 0 and 0 <= reading.foreign_share < 1e9
    return has_numbers and reading.sender == host
