"""Symptoms of a node's link, and the cause that they suggest. Pure: a table of rules, of which the first one holds.

The limits are those that NVIDIA's NVSentinel has for the same counters; the most certain rules come first.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from laggard.collectors.causes import UNKNOWN, Cause


@dataclass(frozen=True, slots=True)
class LinkSymptoms:
    """What the kernel says of a node's interface."""

    interface: str = ""
    speed_mbps: int = 0  # the speed that both ends have agreed on, in Mb/s; 0: not known
    duplex: str = ""  # `full`, `half`, or empty
    risen: Mapping[str, int] = field(default_factory=dict)  # by how much counters have risen


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause: its name, and what returns it as a sentence, or None if it does not hold."""

    name: str
    sentence: Callable[[LinkSymptoms, float, float], str | None]


def cause_of_link(symptoms: LinkSymptoms, peers: Iterable[LinkSymptoms], seconds: float) -> Cause:
    """Return the likely cause of a slow link."""
    speeds = [each.speed_mbps for each in peers if each.speed_mbps]
    usual_mbps = statistics.median(speeds) if speeds else 0.0
    found = ((rule.name, rule.sentence(symptoms, usual_mbps, seconds)) for rule in RULES)
    return next((Cause(name, sentence) for name, sentence in found if sentence), UNKNOWN)


def together(newest_last: Sequence[LinkSymptoms]) -> LinkSymptoms:
    """Return the symptoms of several rounds in a row: the newest settings, and the sums of the rises."""
    risen: Counter[str] = Counter()
    for each in newest_last:
        risen.update(each.risen)
    newest = newest_last[-1]
    return LinkSymptoms(newest.interface, newest.speed_mbps, newest.duplex, dict(risen))


def downs_of(symptoms: LinkSymptoms) -> int:
    """Return how often a link went down: an Ethernet carrier, or an InfiniBand port, whose interface follows it."""
    return max(symptoms.risen.get(name, 0) for name in ("carrier_down_count", "link_downed"))


def _went_down(symptoms: LinkSymptoms, _: float, seconds: float) -> str | None:
    count = downs_of(symptoms)
    return f"cable or port: the link went down {count} times in {seconds:.0f} s" if count else None


def _speed(symptoms: LinkSymptoms, usual_mbps: float, _: float) -> str | None:
    if not 0 < symptoms.speed_mbps < usual_mbps:
        return None
    return f"link speed {symptoms.speed_mbps} Mb/s where its peers have {usual_mbps:.0f}"


def _duplex(symptoms: LinkSymptoms, *_: float) -> str | None:
    return "the link is half duplex" if symptoms.duplex == "half" else None


def _above(name: str, per_s: float, words: str) -> Callable[[LinkSymptoms, float, float], str | None]:
    def sentence(symptoms: LinkSymptoms, _: float, seconds: float) -> str | None:
        count = symptoms.risen.get(name, 0)
        return f"{words.format(count)} in {seconds:.0f} s" if count > per_s * seconds else None

    return sentence


_HOUR_S, _MINUTE_S = 3600.0, 60.0

RULES: tuple[Rule, ...] = (
    Rule("speed", _speed),
    Rule("duplex", _duplex),
    Rule("down", _went_down),
    Rule("integrity", _above("local_link_integrity_errors", 0, "cable or port: {} link integrity errors")),
    Rule("symbols", _above("symbol_error", 120 / _HOUR_S, "cable or optics: {} symbol errors")),
    Rule("recovery", _above("link_error_recovery", 5 / _MINUTE_S, "the link retrained {} times")),
    Rule("carrier errors", _above("tx_carrier_errors", 0, "cable or port: {} carrier errors")),
    Rule("checksums", _above("rx_crc_errors", 0, "cable or optics: {} packets with wrong checksums")),
    Rule("received", _above("port_rcv_errors", 10, "the other end or the cable: {} packets received with errors")),
    Rule("receive errors", _above("rx_errors", 0, "{} packets received with errors")),
    Rule("send errors", _above("tx_errors", 0, "{} packets could not be sent")),
    Rule("collisions", _above("collisions", 0, "{} collisions: one end may be half duplex")),
    Rule("discards", _above("port_xmit_discards", 100, "congestion: the port discarded {} packets")),
    Rule("waiting", _above("port_xmit_wait", 0, "congestion: data waited for {} ticks at the port")),
    Rule("receive drops", _above("rx_dropped", 1, "{} received packets were dropped")),
    Rule("send drops", _above("tx_dropped", 1, "{} packets were dropped before they were sent")),
    Rule("retransmissions", _above("tcp_retransmissions", 0, "TCP had to send {} segments of the probes again")),
)
