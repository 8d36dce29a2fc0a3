"""What ``laggard doctor`` prints of the links between nodes: the usual figures, and the slowest ones. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from laggard.collectors.links.reading import LinkReading
from laggard.node_names import folded
from laggard.resilience.command.link_check import LinkCheck
from laggard.resilience.command.nccl_check import NcclCheck
from laggard.resilience.text import abbreviated, counted

__all__ = ["lines_on_links", "lines_on_nccl"]

MAX_SHOWN = 10
SHOWN_FROM = 1.1
MB, GB = (1e6, "MB/s"), (1e9, "GB/s")
# Links of one node are told in one line if none of them is twice as slow as another.
_ALIKE = 2.0


def lines_on_links(check: LinkCheck) -> list[str]:
    """Return the links that could not be measured over TCP, the ten slowest, and the usual figures."""
    failures = [f"link {what}: {why}" for what, why in sorted(check.failures.items())]
    lines = _first_lines(failures, len(failures) - MAX_SHOWN, "not measured")
    if not check.readings:
        return lines
    usual = _median_of_nodes(check.readings)
    slow = _slow(check.readings, usual.duration_s)
    lines += _slowest([("", group, usual.duration_s) for group in _of_one_node(slow)], len(slow), MB)
    latency_s = statistics.median(each.latency_s for each in check.readings)
    count = counted(len(check.readings), "link", "links")
    return [*lines, f"{count} measured: median {_range([_rate(usual, MB)])} MB/s, round trip {1e6 * latency_s:.0f} us"]


def lines_on_nccl(check: NcclCheck) -> list[str]:
    """Return the same of what was measured by NCCL: the links of a rail are compared with the median of that rail."""
    failures = [f"nccl {what}: {why}" for what, why in check.failures.items()]
    lines = [f"nccl: {remark}" for remark in check.remarks]
    lines += _first_lines(failures, len(failures) - MAX_SHOWN, "not measured by NCCL")
    if not check.readings:
        return lines
    by_rail: dict[str, list[LinkReading]] = defaultdict(list)
    for each in check.readings:
        by_rail[each.path].append(each)
    usual = {rail: _median_of_nodes(links) for rail, links in by_rail.items()}
    slow = {rail: _slow(links, usual[rail].duration_s) for rail, links in by_rail.items()}
    groups = [
        (f"nccl {rail}: ", group, usual[rail].duration_s)
        for rail, links in slow.items()
        for group in _of_one_node(links)
    ]
    lines += _slowest(groups, sum(map(len, slow.values())), GB)
    rails: dict[str, list[str]] = defaultdict(list)
    for rail, reading in sorted(usual.items(), key=lambda item: item[1].duration_s):
        rails[_range([_rate(reading, GB)])].append(rail)
    medians = ", ".join(f"{rate} GB/s ({abbreviated(names)})" for rate, names in rails.items())
    return [*lines, f"nccl: {counted(len(check.readings), 'link', 'links')} measured: median {medians}"]


def _median_of_nodes(links: Sequence[LinkReading]) -> LinkReading:
    """Return the median of each node's fastest link.

    A node that is slow both ways has half of the links of four nodes: it would be in the middle of all links.
    """
    fastest: dict[str, LinkReading] = {}
    for each in sorted(links, key=lambda each: each.duration_s):
        for node in (each.sender, each.receiver):
            fastest.setdefault(node, each)
    in_order = list(fastest.values())  # the fastest first
    return in_order[(len(in_order) - 1) // 2]


Group = tuple[str, list[LinkReading], float]
"""Slow links that one line tells: what stands before it, the links, and what is usual of them, in seconds."""


def _slowest(groups: Sequence[Group], n_slow: int, unit: tuple[float, str]) -> list[str]:
    shown = sorted(groups, key=lambda group: -group[1][0].duration_s / group[2])[:MAX_SHOWN]
    lines = [f"{before}{_line(links, usual_s, unit)}" for before, links, usual_s in shown]
    left = n_slow - sum(len(links) for _, links, _ in shown)
    return _first_lines(lines, left, f"at least {SHOWN_FROM} times as slow")


def _slow(links: Sequence[LinkReading], usual_s: float) -> list[LinkReading]:
    return [each for each in links if each.duration_s >= SHOWN_FROM * usual_s]


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


def _line(links: Sequence[LinkReading], usual_s: float, unit: tuple[float, str]) -> str:
    senders, receivers = (
        ", ".join(folded(dict.fromkeys(names)))
        for names in ((each.sender for each in links), (each.receiver for each in links))
    )
    rates = _range([_rate(each, unit) for each in links])
    ratios = _range([each.duration_s / usual_s for each in links])
    foreign = max(each.foreign_share for each in links)
    disturbed = f"; others sent {'up to ' if len(links) > 1 else ''}{foreign:.0%} as much" if foreign else ""
    return f"link {senders} to {receivers}: {rates} {unit[1]}, {ratios} times as slow as the median{disturbed}"


def _rate(reading: LinkReading, unit: tuple[float, str]) -> float:
    return reading.n_bytes / reading.duration_s / unit[0]


def _range(values: Sequence[float]) -> str:
    ends = (min(values), max(values))
    return " to ".join(dict.fromkeys(f"{each:.3g}" if each < 999 else f"{each:.0f}" for each in ends))
