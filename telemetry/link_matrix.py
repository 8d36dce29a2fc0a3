"""The matrix of links: how long each node's transfers to each other node take, in a size that people can read. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from laggard.kvstore.series.timeseries import Floats

SEND_TIME = "link.send_s"
"""A metric with the tags ``host``, the sender, and ``peer``: the time of a transfer."""
TRANSFER_BYTES, LEAF = "link.transfer_bytes", "link.leaf"
"""Metrics with the tag ``host``: what a transfer has, and 1 for the leaf switch that the tag ``leaf`` names."""
LEAF_SEND_TIME = "link.leaf_send_s"
"""A metric with the tags ``host``, ``leaf`` and ``peer_leaf``: the time of a transfer to a node below that leaf."""
LINK_METRICS = frozenset({SEND_TIME, TRANSFER_BYTES, LEAF, LEAF_SEND_TIME})
MAX_NAMES = 64
NO_LEAF = "no leaf"

Link = tuple[str, str]
"""Sender and receiver."""


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Times of transfers, senders in rows and receivers in columns."""

    kind: Literal["nodes", "leaves"]  # what the rows and columns are
    names: tuple[str, ...]  # their names, in order
    seconds: Floats  # one time for each pair; of leaves the median of the links between them; NaN if they never met
    median_s: float  # the median of all links, also of those that are left out
    n_links: int  # how many links were measured
    left_out: int  # how many nodes or leaves are left out for lack of room
    leaf_of: Mapping[str, str]  # the leaf of each node, as far as it is known

    def accused(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """Return the rows to which some nodes belong, and which of them belong to each."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            name = self.leaf_of.get(node) if self.kind == "leaves" else node
            if name in self.names:
                found.setdefault(name, []).append(node)
        return found

    def to_json(self, accused: Iterable[str] = ()) -> dict[str, Any]:
        """Return it as the page reads it: times row by row, in seconds, None for pairs that never met."""
        times = [float(f"{each:.4g}") if math.isfinite(each) else None for each in self.seconds.ravel().tolist()]
        return {
            "kind": self.kind,
            "names": list(self.names),
            "seconds": times,
            "median": self.median_s,
            "n_links": self.n_links,
            "left_out": self.left_out,
            "accused": self.accused(accused),
        }


def matrix_of(
    seconds: Mapping[Link, float], leaves: Mapping[str, str] | None = None, most: int = MAX_NAMES
) -> LinkMatrix | None:
    """Return the matrix of nodes, or of leaves if the nodes are too many and their leaves are known."""
    # If these are too many as well, the slowest come first, each followed by those that it has met: a row without its
    # columns would say nothing.
    links = {link: value for link, value in seconds.items() if math.isfinite(value) and value >= 0}
    if not links or most < 1:
        return None
    kind: Literal["nodes", "leaves"] = "nodes"
    median_s, n_links = median(links.values()), len(links)
    names = {name for link in links for name in link}
    leaf_of = {name: (leaves or {}).get(name) or NO_LEAF for name in names}
    if len(names) > most and len({*leaf_of.values()}) > 1:
        kind, links = "leaves", _between_leaves(links, leaf_of)
        names = {*leaf_of.values()}
    shown = sorted(names, key=natural) if len(names) <= most else _slowest(links, most)
    place = {name: at for at, name in enumerate(shown)}
    cells = np.full((len(shown), len(shown)), np.nan)
    for (sender, receiver), value in links.items():
        if sender in place and receiver in place:
            cells[place[sender], place[receiver]] = value
    return LinkMatrix(kind, tuple(shown), cells, median_s, n_links, len(names) - len(shown), leaf_of)


def newest_of_one_size(
    samples: Iterable[tuple[Link, int, float]], sizes: Iterable[tuple[int, float]]
) -> dict[Link, float]:
    """Return the newest time of each link, as far as the transfers had as many bytes as they have now."""
    known = sorted(sizes)
    since = max((at for at, size in known if size != known[-1][1]), default=-math.inf)
    newest: dict[Link, tuple[int, float]] = {}
    for link, at, value in samples:
        if at > since and (link not in newest or at >= newest[link][0]):
            newest[link] = at, value
    return {link: value for link, (_, value) in newest.items()}


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key by which node2 comes before node10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text) if part)


def _between_leaves(links: Mapping[Link, float], leaf_of: Mapping[str, str]) -> dict[Link, float]:
    between: dict[Link, list[float]] = defaultdict(list)
    for (sender, receiver), value in links.items():
        between[leaf_of[sender], leaf_of[receiver]].append(value)
    return {link: median(values) for link, values in between.items()}


def _slowest(links: Mapping[Link, float], most: int) -> Sequence[str]:
    """Return the slowest names, each followed by those that it has met, the slowest first."""
    met: dict[str, dict[str, float]] = defaultdict(dict)
    ways: dict[tuple[str, int], float] = {}
    for (sender, receiver), value in links.items():
        for way, (name, other) in enumerate(((sender, receiver), (receiver, sender))):
            met[name][other] = max(value, met[name].get(other, 0.0))
            # As the detector has it: slow one way is whoever is slow to all.
            ways[name, way] = min(value, ways.get((name, way), math.inf))
    slowness = {name: max(ways.get((name, way), 0.0) for way in (0, 1)) for name in met}
    shown: dict[str, None] = {}
    for name in sorted(met, key=lambda each: (-slowness[each], natural(each))):
        others = sorted(met[name], key=lambda each: (-met[name][each], natural(each)))
        shown |= dict.fromkeys([name, *others])
        if len(shown) >= most:
            break
    return list(shown)[:most]
