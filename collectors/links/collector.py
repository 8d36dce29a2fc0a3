"""The process of one node that probes its links, round by round, as the nodes of the launch have agreed."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from laggard.collectors.errors import NoInterfaceError
from laggard.collectors.group import ERROR
from laggard.collectors.links.board import LinkBoard
from laggard.collectors.links.handshake import key_of
from laggard.collectors.links.interface_counters import CountersOfRound, address_on, interface_of
from laggard.collectors.links.prober import REPEATS, TRANSFER_S, LinkProber
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import partner_in, rounds_of, with_pairs
from laggard.collectors.links.symptoms import LinkSymptoms
from laggard.collectors.probe_schedule import OVERHEAD, moment_s
from laggard.kvstore.client.common_clock import CommonClock
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.kvstore.series.streams import Sample, Series
from laggard.records import plain, record_of
from laggard.telemetry.link_matrix import LEAF, LEAF_SEND_TIME, SEND_TIME, TRANSFER_BYTES
from laggard.telemetry.sending.sender import Telemetry

_log = logging.getLogger("laggard.collectors.links")

LINK_TIME = "links"
"""The metric under which a node's readings are stored: one sample a round."""
PARTNERS = 3  # of a node in a round: docs/links.md
_REPORT = "report"
LAUNCH = "launch"
"""The tag of a report that has the number of its launch."""
# Round trips, connecting, and waiting for a partner that is a little late.
_AROUND_TRANSFERS_S = 0.02


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What a node says after a round, as the tags of its sample."""

    readings: tuple[LinkReading, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)  # why there is no reading, by partner
    symptoms: LinkSymptoms = field(default_factory=LinkSymptoms)  # what its interface counted since its last report
    launch: int = 0
    leaf: str = ""  # the switch that it is connected to; empty if that is not known

    def tags(self, host: str) -> dict[str, str]:
        """Return the tags of the sample."""
        return {"host": host, _REPORT: json.dumps(plain(self)), LAUNCH: str(self.launch)}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> LinkReport:
        """Read what :meth:`tags` returned."""
        return record_of(cls, orjson.loads(tags[_REPORT]))


def stride_of(interval_s: float, max_intrusion: float) -> int:
    """Return how many intervals apart rounds must be so that they take no more than a share of the time."""
    # A synchronous job loses one node's part of a round in each, since all nodes probe at once; so that is what counts.
    exchange_s = REPEATS * TRANSFER_S + _AROUND_TRANSFERS_S
    return max(1, math.ceil(OVERHEAD * PARTNERS * exchange_s / (max_intrusion * interval_s)))


def newest_due(after: int, now_s: float, interval_s: float, seed: str) -> int:
    """Return the number of the newest round that is due, or of the next one, if it comes after a given one."""
    # A node that was held up so does not leave out the round that the others have just begun.
    number = max(after + 1, math.floor(now_s / interval_s) - 1)
    while moment_s(number + 1, interval_s, seed) <= now_s:
        number += 1
    return number


class LinkCollector:
    """Probes the links of this node in a thread."""

    def __init__(
        self, interval_s: float, max_intrusion: float, leaves: Mapping[str, str] | None = None, interface: str = ""
    ) -> None:
        session = current_session()
        environment = session.environment
        control = Control(session.client, session.endpoint, environment.launch)
        launch = control.read_launch()
        in_job = next(node.address for node in launch.nodes if node.hostname == environment.node)
        address = address_on(interface) if interface else in_job
        key = key_of(session.endpoint.password, session.endpoint.job, environment.launch)
        self._prober = LinkProber(environment.node, address, key)
        self._counters = CountersOfRound(interface_of(address))
        self._board = LinkBoard(control)
        self._series = Series(session.client, session.endpoint, environment.launch)
        self._telemetry = Telemetry()
        self._launch = environment.launch
        self._leaves = leaves = leaves or launch.leaves
        self._leaf = leaves.get(environment.node, "")
        self._telemetry_of_leaf = Telemetry(tags={"leaf": self._leaf})
        self._clock = CommonClock(session.client)
        # Seconds from one round to the next, if probes cost nothing
        self._interval_s = interval_s * stride_of(interval_s, max_intrusion)
        self._seed = seed = f"{session.endpoint.job} {environment.launch}"
        hosts = [node.hostname for node in launch.nodes]
        self._rounds = rounds_of(hosts, seed, leaves, PARTNERS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._probe, name="links", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the round that is under way, if any."""
        self._ended.set()
        self._prober.close()

    def _probe(self) -> None:
        try:
            self._board.tell_address(self._prober.host, self._prober.listens_at)
            number = math.floor(self._clock.now_s() / self._interval_s) - 1
            while True:
                now_s = self._clock.now_s()
                number = newest_due(number, now_s, self._interval_s, self._seed)
                if self._ended.wait(max(0.0, moment_s(number, self._interval_s, self._seed) - now_s)):
                    return
                try:
                    self._probe_once(number)
                except KVStoreError as error:
                    if isinstance(error, FencedError):
                        raise
                    _log.warning("a round of links was dropped: %s", error)
                self._clock.measure_if_due()
        except FencedError:
            self._prober.close()  # this launch is over

    def _probe_once(self, number: int) -> None:
        addresses, n_bytes, again = self._board.terms()
        # A node that has not read of a new pair yet meets a busy partner, and the NICs' counters show that.
        partners = [partner_in(pairs, self._prober.host) for pairs in with_pairs(self._rounds(number), again)]
        found = self._prober.run(number, partners, addresses, n_bytes)
        symptoms = self._counters.symptoms(found.retransmissions)
        report = LinkReport(tuple(found.readings), found.failures, symptoms, self._launch, self._leaf)
        self._tell_people(report)
        values = tuple(reading.duration_s for reading in found.readings) or (math.nan,)
        self._series.add([Sample(LINK_TIME, time.time(), values, report.tags(self._prober.host))])

    def _tell_people(self, report: LinkReport) -> None:
        """Send telemetry, which the detector does not read."""
        for reading in report.readings:
            self._telemetry.add_data(SEND_TIME, reading.duration_s, tagk="peer", tagv=reading.receiver)
            if self._leaf and (leaf := self._leaves.get(reading.receiver)):
                self._telemetry_of_leaf.add_data(LEAF_SEND_TIME, reading.duration_s, tagk="peer_leaf", tagv=leaf)
        if report.readings:
            self._telemetry.add_data(TRANSFER_BYTES, report.readings[-1].n_bytes)
            if report.leaf:
                self._telemetry.add_data(LEAF, 1.0, tagk="leaf", tagv=report.leaf)


def tell_failure(error: NoInterfaceError) -> None:
    """Report, in place of a round, why this node's links are not probed."""
    session = current_session()
    host = session.environment.node
    tags = LinkReport(launch=session.environment.launch).tags(host) | {ERROR: str(error)}
    Series(session.client, session.endpoint, session.environment.launch).add(
        [Sample(LINK_TIME, time.time(), (math.nan,), tags)]
    )
