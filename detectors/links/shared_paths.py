"""What links share: whether all of them are slower than before, or all between some sets of nodes. Reads no clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.links.flows import Flows
from laggard.detectors.notices import LinksSlower
from laggard.detectors.statistics.common_mode import SMALLEST, CommonMode
from laggard.detectors.statistics.readings import Floats

_FEWEST_NODES = 3  # of two nodes, the only link is judged by itself
_ALL = 0.9  # of the pairs: where fewer are slow, nodes may be at fault, each with all of its links
_MUCH_MORE = 2  # times as many pairs: what was suspected before was chance
_READINGS, _FEWEST = 8, 3  # that make up a pair's past, and after which it counts

Numbers = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class _Shared:
    """What pairs share that are slow at once: those that join nodes of different sets."""

    begun: int  # the round in which they were first
    set_of: Numbers  # each node's set: 0, 1, ...; -1: it is in none
    mode: CommonMode

    @property
    def is_all(self) -> bool:
        return len(np.unique(self.set_of)) == len(self.set_of)


class SharedPaths:
    """Follows each pair of nodes against its own past, and finds what slow ones share without knowing the topology.

    If nearly all pairs are slow, the whole network is.  If the pairs that are not slow leave sets of nodes unconnected,
    what joins these sets is: a slow node would be alone, and one slow pair leaves all nodes connected.
    """

    def __init__(self, nodes: tuple[str, ...], smallest: float, *, finds_sets: bool) -> None:
        self._nodes = nodes
        self._smallest = max(SMALLEST, smallest)
        self._finds_sets = finds_sets
        self._round = 0
        self._row_of: dict[int, int] = {}
        self._ends = np.zeros((2, 0), np.intp)  # of each pair
        self._first = np.zeros((_READINGS, 0), np.float32)  # log times that make up its past
        self._n_first = np.zeros(0, np.intp)
        # In which round it was measured last, and how much slower than its past it was since something is suspected
        self._measured = np.zeros(0, np.intp)
        self._slower = np.zeros(0, np.float32)
        self._told: list[_Shared] = []  # until it is over
        self._ended = CommonMode().ended
        self._suspected: _Shared | None = None
        self._notices: list[LinksSlower] = []

    def add(self, flows: Flows, is_explained: Flags, now_s: float) -> Flags:
        """Add a round, without the flows that a slow node explains; return which ones something shared explains."""
        explained = np.zeros(len(flows), np.bool_)
        if len(self._nodes) < _FEWEST_NODES:
            return explained
        self._round += 1
        rows, slower = self._compare(flows.take(~is_explained))
        self._suspect(rows, slower)
        known = [*self._told, *([self._suspected] if self._suspected else [])]
        for shared in known:
            self._follow(shared, slower[_joins(shared.set_of, *self._ends[:, rows])], now_s)
        for shared in known:
            if shared.mode.is_slow and not shared.is_all:
                explained |= _joins(shared.set_of, flows.sender, flows.receiver)
        return explained

    def take_notices(self) -> list[LinksSlower]:
        """Return what is new, each thing once."""
        new, self._notices = self._notices, []
        return new

    # -- pairs ---------------------------------------------------------------------------------------------------------

    def _compare(self, flows: Flows) -> tuple[Numbers, Floats]:
        """Return the pairs that were measured, and how much slower than its past each one's slower way was."""
        ends = np.minimum(flows.sender, flows.receiver), np.maximum(flows.sender, flows.receiver)
        codes, place = np.unique(ends[0] * len(self._nodes) + ends[1], return_inverse=True)
        log_time = np.full(len(codes), -np.inf, np.float32)
        np.maximum.at(log_time, place, flows.log_time)
        rows = self._rows(codes)
        n_first = self._n_first[rows]
        ordered = np.sort(self._first[:, rows], axis=0)
        past = np.take_along_axis(ordered, np.maximum(n_first - 1, 0)[None] // 4, axis=0)[0]  # disturbances only add
        slower = np.where(n_first >= _FEWEST, log_time - past, np.float32(np.nan))
        more = (n_first < _READINGS) & ~(slower > self._smallest)
        self._first[n_first[more], rows[more]] = log_time[more]
        self._n_first[rows] += more
        goes_on = self._suspected is not None and self._measured[rows] >= self._suspected.begun
        self._slower[rows] = np.where(goes_on, np.fmin(self._slower[rows], slower), slower)
        self._measured[rows] = self._round
        return rows, slower

    def _rows(self, codes: Numbers) -> Numbers:
        """Return the rows of pairs; those that have none yet get one."""
        rows = np.array([self._row_of.setdefault(code, len(self._row_of)) for code in codes.tolist()], np.intp)
        new = len(self._row_of) - len(self._slower)
        if new:
            ends = np.stack(np.divmod(codes[rows >= len(self._slower)], len(self._nodes)))
            self._ends = np.concatenate([self._ends, ends], axis=1)
            self._first = np.pad(self._first, ((0, 0), (0, new)), constant_values=np.nan)
            self._n_first, self._measured = np.pad(self._n_first, (0, new)), np.pad(self._measured, (0, new))
            self._slower = np.pad(self._slower, (0, new), constant_values=np.nan)
        return rows

    # -- what they share -----------------------------------------------------------------------------------------------

    def _suspect(self, rows: Numbers, slower: Floats) -> None:
        """Go on to suspect what all readings since then show, unless those of this round show much more."""
        now, known = self._shown(rows, slower), self._suspected
        if known is not None and known.mode.is_slow:
            since = np.flatnonzero(self._measured >= known.begun)
            set_of = self._shown(since, self._slower[since])
            if set_of is not None:
                known.set_of = set_of
                joined = np.count_nonzero(_joins(known.set_of, *self._ends[:, rows]))
                if now is None or np.count_nonzero(_joins(now, *self._ends[:, rows])) <= _MUCH_MORE * joined:
                    return
        self._slower[rows] = slower
        self._suspected = None if now is None else _Shared(self._round, now, CommonMode(0.0, self._ended))

    def _shown(self, rows: Numbers, slower: Floats) -> Numbers | None:
        """Return the sets that slow pairs join, as far as nothing explains them that is known."""
        rows, slower = rows[~np.isnan(slower)], slower[~np.isnan(slower)]
        ends, is_slow = self._ends[:, rows], slower > self._smallest
        for shared in self._told:
            is_slow &= ~_joins(shared.set_of, *ends)
        if np.count_nonzero(is_slow) > _ALL * len(rows) and 2 * len(np.unique(ends)) > len(self._nodes):
            return np.arange(len(self._nodes))
        return _sets(len(self._nodes), ends, is_slow) if self._finds_sets and is_slow.any() else None

    def _follow(self, shared: _Shared, slower: Floats, now_s: float) -> None:
        known = slower[~np.isnan(slower)]
        typical = float(np.median(known)) if len(known) else np.nan
        measured = self._measured[_joins(shared.set_of, *self._ends)] >= shared.begun
        is_sure = bool(np.count_nonzero(measured) > _ALL * len(measured))
        shift = shared.mode.add(typical, now_s, self._smallest, is_sure=is_sure)
        if shift is None:
            return
        if shift.is_over:
            self._told.remove(shared)
        elif shared is self._suspected:
            self._told.append(shared)
            self._suspected = None
        sets = range(0 if shared.is_all else int(shared.set_of.max()) + 1)
        sides = (tuple(self._nodes[node] for node in np.flatnonzero(shared.set_of == each)) for each in sets)
        self._notices.append(LinksSlower(tuple(sides), shift))


def _joins(set_of: Numbers, one: Numbers, other: Numbers) -> Flags:
    """Return which pairs join nodes of different sets."""
    ends = set_of[one], set_of[other]
    return np.asarray((ends[0] != ends[1]) & (np.minimum(*ends) >= 0))


def _sets(n_nodes: int, ends: Numbers, is_slow: Flags) -> Numbers | None:
    """Return each node's set, -1 if it is in none: sets that slow pairs alone join; ``None`` if there are no two."""
    part = _connected(n_nodes, *ends[:, ~is_slow])
    apart: dict[int, set[int]] = defaultdict(set)
    for one, other in part[ends[:, is_slow]].T.tolist():
        if one != other:
            apart[one].add(other)
            apart[other].add(one)
    sizes = np.bincount(part, minlength=n_nodes)
    found: dict[int, int] = {}
    for begin in sorted(apart, key=lambda each: -sizes[each]):
        queue = [begin]
        for each in queue:  # parts that no slow pair joins are one set: in few rounds, not all nodes meet
            if each not in found:
                others = {found[other] for other in apart[each] & found.keys()}
                found[each] = next(number for number in count() if number not in others)
                queue += apart[each] - found.keys()
    set_of = np.array([found.get(each, -1) for each in part.tolist()], np.intp)
    real = np.unique(set_of[(set_of >= 0) & (sizes[part] > 1)])  # nodes that are alone may each be slow
    if len(real) < 2:
        return None
    number_of = np.full(n_nodes + 1, -1)
    number_of[real] = np.arange(len(real))
    return np.asarray(number_of[set_of])


def _connected(n_nodes: int, one: Numbers, other: Numbers) -> Numbers:
    """Return the first node that each node is connected to by pairs."""
    least = np.arange(n_nodes)
    while not np.array_equal(least[one], least[other]):
        of_pair = np.minimum(least[one], least[other])
        np.minimum.at(least, one, of_pair)
        np.minimum.at(least, other, of_pair)
    return least
