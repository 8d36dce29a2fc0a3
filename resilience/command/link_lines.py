"""What ``laggard doctor`` prints of the links between nodes: the usual figures, and the slowest ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.collectors.links.reading import LinkReading
from laggard.node_names import folded
from laggard.resilience.command.link_check import LinkCheck
from laggard.resilience.text import counted

MAX_SHOWN = 10
SHOWN_FROM = 1.1
# Links of one node are told in one line if none of them is twice as slow as another.
_ALIKE = 2.0


def lines_on_links(check: LinkCheck) -> list[str]:
    """Return the links that could not be measured, the ten slowest, and the usual figures."""
    failures = [f"link {what}: {why}" for what, why in sorted(check.failures.items())]
    lines = _first_lines(failures, len(failures) - MAX_SHOWN, "not measured")
    if not check.readings:
        return lines
    usual = _median_of_nodes(check.readings)
    slow = [each for each in check.readings if each.duration_s >= SHOWN_FROM * usual.duration_s]
    groups = list(_of_one_node(slow))
    left = len(slow) - sum(map(len, groups))
    slowest = [_line(group, usual.duration_s) for group in groups]
    lines += _first_lines(slowest, left, f"at least {SHOWN_FROM} times as slow")
    count = counted(len(check.readings), "link", "links")
    return [*lines, f"{count} measured: median {_range([_mb_per_s(usual)])} MB/s"]


def _median_of_nodes(links: Sequence[LinkReading]) -> LinkReading:
    """Return the median of each node's fastest link."""
    # A node that is slow both ways has half of the links of four nodes: it would be in the middle of all links.
    fastest: dict[str, LinkReading] = {}
    for each in sorted(links, key=lambda each: each.duration_s):
        for node in (each.sender, each.receiver):
            fastest.setdefault(node, each)
    in_order = list(fastest.values())  # the fastest first
    return in_order[(len(in_order) - 1) // 2]


def _first_lines(lines: Sequence[str], left: int, what: str) -> list[str]:
    return [*lines[:MAX_SHOWN], *([f"and {counted(left, 'link', 'links')} more {what}"] if left > 0 else [])]


def _of_one_node(slow: Sequence[LinkReading]) -> Iterator[list[LinkReading]]:
    """Yield the first few groups of slow links, the slowest first: those that one's sender or its receiver has like it.

    The first link of a group is the slowest of it.
    """
    left = sorted(slow, key=lambda each: -each.duration_s)
    for _ in range(MAX_SHOWN):
        if not left:
            return
        worst = left[0]
        alike = [each for each in left if each.duration_s * _ALIKE > worst.duration_s]
        of_sender = [each for each in alike if each.sender == worst.sender]
        of_receiver = [each for each in alike if each.receiver == worst.receiver]
        found = max(of_sender, of_receiver, key=len)
        yield found
        left = [each for each in left if each not in found]


def _line(links: Sequence[LinkReading], usual_s: float) -> str:
    senders, receivers = (
        ", ".join(folded(dict.fromkeys(names)))
        for names in ((each.sender for each in links), (each.receiver for each in links))
    )
    rates = _range([_mb_per_s(each) for each in links])
    ratios = _range([each.duration_s / usual_s for each in links])
    foreign = max(each.foreign_share for each in links)
    disturbed = f"; others sent {'up to ' if len(links) > 1 else ''}{foreign:.0%} as much" if foreign else ""
    return f"link {senders} to {receivers}: {rates} MB/s, {ratios} times as slow as the median{disturbed}"


def _mb_per_s(reading: LinkReading) -> float:
    return 1e-6 * reading.n_bytes / reading.duration_s


def _range(values: Sequence[float]) -> str:
    ends = (min(values), max(values))
    return " to ".join(dict.fromkeys(f"{each:.3g}" if each < 999 else f"{each:.0f}" for each in ends))
