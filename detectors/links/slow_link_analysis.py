"""SlowLinkAnalysis: who slows the transfers between nodes, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.collectors.links.reading import LinkReading
from laggard.detectors.evidence import LinkKind, Side, SlowLink
from laggard.detectors.links.flows import Flows, flows_of, other_fastest, ranked
from laggard.detectors.links.shared_paths import SharedPaths
from laggard.detectors.notices import LinkBusy, LinksSlower
from laggard.detectors.statistics.device_index import codes_of
from laggard.detectors.statistics.estimates import Floats
from laggard.detectors.statistics.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.statistics.thresholds import VERY_SLOW
from laggard.detectors.verdict import Action, Evidence, Severity, Verdict

_NODES, _LEAVES, _PAIRS = 0.8, 0.1, 0.1  # of the budget
_SIDES: tuple[Side, Side] = "sends", "receives"
_FEWEST_PARTNERS = 2  # with undisturbed transfers to one partner only, the pair may be to blame
_FEWEST_FLOWS = 4  # of a leaf, to two other leaves at least
_PAIR_SLOWDOWN = 1.2  # the smallest that matters of a single path: one of many that a node has
_BUSY_ROUNDS = 3  # in a row, after which to say that a node's links are not judged


class SlowLinkAnalysis:
    """Streaming detector of slow NICs, slow leaf switches and slow paths between two nodes.

    Each is judged by :class:`SlowGPUAnalysis`, whose statistics and guarantee it shares: a node's two directions, a
    leaf's two directions and each flow stand in the place of devices, and the budget is divided among the three.  A
    node is as slow as its *fastest* transfer of a round in that direction: a slow partner, a slow path and a
    disturbance accuse nobody, because the transfers to its other partners are as fast as ever.  A leaf is as slow as
    the fastest quarter of the transfers that leave or enter it.  A flow is as slow as it is beyond what its sender, its
    receiver and their leaves explain.  A reading during which others carried more than 5 % of its bytes on either NIC
    is none, and so is that of the other direction, whose acknowledgements waited.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        leaves: Mapping[str, str] | None = None,
        budget: float = 1e-4,
        min_slowdown: float = 1.05,
    ) -> None:
        if not 0 < budget < 1:
            raise ValueError(f"budget must be a probability between 0 and 1, got {budget}")
        self._nodes = tuple(nodes)  # all nodes of the launch
        self._number_of = {node: number for number, node in enumerate(self._nodes)}
        self._round = 0
        labels = [(leaves or {}).get(node, "") for node in self._nodes]
        self._leaf = codes_of(labels).astype(np.intp)
        self._leaves = tuple(dict.fromkeys(labels))  # the leaf switch of each node, `None` if unknown
        has_leaves = len(self._leaves) > 1
        self._below = np.bincount(self._leaf, minlength=1)
        self._is_link = len(self._nodes) == 2
        pair_slowdown = min_slowdown if self._is_link else max(min_slowdown, _PAIR_SLOWDOWN)
        self._of_nodes = _judge(_sides(self._nodes), _NODES * budget, min_slowdown)
        self._of_leaves = _judge(_sides(self._leaves if has_leaves else ()), _LEAVES * budget, min_slowdown)
        self._of_flows = _judge((), (_NODES if self._is_link else _PAIRS) * budget, pair_slowdown)
        self._flow_codes = np.zeros(0, np.intp)
        self._flow_names: tuple[DeviceId, ...] = ()
        self._order = np.zeros(0, np.intp)
        self._was_slow = np.zeros(0, np.bool_)
        self._is_culprit = np.zeros(2 * len(self._nodes), np.bool_)  # a row for each of the nodes' devices
        self._told_pairs: set[frozenset[str]] = set()
        self._busy_rounds = np.zeros(len(self._nodes), np.intp)
        # A leaf of three or more is judged by itself
        smallest, finds_sets = float(np.log(min_slowdown)), len(self._leaves) < 3
        self._shared = SharedPaths(self._nodes, smallest, finds_sets=finds_sets)
        self._notices: list[LinkBusy] = []

    def add_round(self, readings: Sequence[LinkReading], now_s: float = np.nan) -> list[Verdict]:
        """Take one round's readings and return the verdicts that are new, in the order leaf, node, pair."""
        return self.add_flows(flows_of(readings, self._number_of), now_s)

    def add_flows(self, flows: Flows, now_s: float = np.nan) -> list[Verdict]:
        """Take one round as arrays, whose nodes are numbered as in ``nodes``; ``now_s`` is its Unix time."""
        self._round += 1
        self._note_busy(flows)
        flows = flows.undisturbed()
        is_slow = np.any(self._is_culprit.reshape(2, -1), axis=0)
        by_nodes = is_slow[flows.sender] | is_slow[flows.receiver]
        flows = flows.take(~self._shared.add(flows, by_nodes, now_s))
        if self._is_link:
            flows = flows.of_two_nodes()
            return list(self._judge_flows(flows, flows.log_time))
        is_near = self._leaf[flows.sender] == self._leaf[flows.receiver]
        flows = flows.without_classes(is_near)
        by_leaf = self._speed_of_leaves(flows, ~is_near)
        unexplained = self._unexplained(flows, is_near, by_leaf)
        is_bad_path = self._again(flows, unexplained > np.log(_PAIR_SLOWDOWN))
        found = [
            *self._told("leaf", self._of_leaves, by_leaf.reshape(-1, 1)),
            *self._told("node", self._of_nodes, self._speed_of_nodes(flows, is_near, is_bad_path)),
        ]
        self._note_culprits(found)
        return [*found, *self._judge_flows(flows, unexplained)]

    def take_notices(self) -> list[LinkBusy | LinksSlower]:
        """Return what is new, each thing once: whose links cannot be judged, and what many links share."""
        new, self._notices = self._notices, []
        return [*new, *self._shared.take_notices()]

    # -- nodes and leaves ----------------------------------------------------------------------------------------------

    def _speed_of_nodes(self, flows: Flows, is_near: NDArray[np.bool_], is_bad_path: NDArray[np.bool_]) -> Floats:
        """Return each node's log times to its partners, ``(2 * n_nodes, n_partners)``; sending nodes first."""
        # A transfer that its path or its other end slows down is left out; a node with fewer than two is not judged.
        count = len(self._nodes)
        sends, receives = flows.sender, flows.receiver + count
        owner, other_end = np.concatenate([sends, receives]), np.concatenate([receives, sends])
        counts = ~(self._is_culprit[other_end] | np.tile(is_bad_path, 2))
        owner = owner[counts]
        table, _, sizes = ranked(owner, 2 * count, np.tile(flows.log_time, 2)[counts])
        table[sizes < _FEWEST_PARTNERS] = np.nan
        if len(self._leaves) > 1:  # far transfers alone may be slow by the uplink's fault
            near = np.bincount(owner, np.tile(is_near, 2)[counts], 2 * count)
            table[(near == 0) & np.tile(self._below[self._leaf] > 1, 2)] = np.nan
        return table

    def _note_culprits(self, found: Iterable[Verdict]) -> None:
        """Note whose side of a transfer is known to be slow: until it is well, the transfer says nothing of others."""
        devices = self._of_nodes.devices
        for verdict in found:
            link = link_of(verdict)
            if link.kind == "node":
                self._is_culprit |= [host == link.names[0] and link.side in (side, "both") for host, side in devices]
        for row in np.flatnonzero(self._is_culprit).tolist():
            self._is_culprit[row] = bool(self._of_nodes.suspects(devices[row]))

    def _speed_of_leaves(self, flows: Flows, is_far: NDArray[np.bool_]) -> Floats:
        """Return the log time of the fastest quarter of what leaves and enters each leaf, ``(2, n_leaves)``."""
        found = np.full((2, len(self._leaves)), np.nan, np.float32)
        if len(self._leaves) < 2 or not is_far.any():
            return found
        ends = self._leaf[flows.sender[is_far]], self._leaf[flows.receiver[is_far]]
        for side, (own, other) in enumerate((ends, ends[::-1])):
            table, _, sizes = ranked(own, len(self._leaves), flows.log_time[is_far])
            met = np.unique(np.stack([own, other], axis=1), axis=0)[:, 0]
            enough = (sizes >= _FEWEST_FLOWS) & (np.bincount(met, minlength=len(self._leaves)) > 1)
            enough &= self._below > 1
            rows = np.flatnonzero(enough)
            found[side, rows] = table[rows, (sizes[rows] - 1) // 4]
        return found

    def _told(self, kind: LinkKind, judge: SlowGPUAnalysis, log_times: Floats) -> Iterator[Verdict]:
        """Judge nodes or leaves by their log times ``(n_devices, n_repeats)`` and tell of those that are slow."""
        if not judge.devices or not log_times.size:
            return
        others = len(judge.devices) // 2 - 1
        for verdict in _sure(judge.update_arrays(judge.devices, np.exp(log_times), now_s=self._round)):
            side = _side(verdict.gpu)
            rounds = self._rounds_of(judge, [(verdict.host, each) for each in _SIDES if side in (each, "both")])
            yield _verdict(SlowLink(kind, (verdict.host,), side, verdict.slowdown, others, rounds))

    def _rounds_of(self, judge: SlowGPUAnalysis, devices: Iterable[DeviceId]) -> int:
        """Return how many rounds ago the first of these became slow; the analysis counts time in rounds."""
        episodes = [episode for device in devices if (episode := judge.episode(device)) is not None]
        return max((self._round - int(episode.since_s) + 1 for episode in episodes), default=1)

    # -- flows ---------------------------------------------------------------------------------------------------------

    def _unexplained(self, flows: Flows, is_near: NDArray[np.bool_], by_leaf: Floats) -> Floats:
        """Return by how much each flow is slower than its ends and their leaves explain, ``(n_flows,)``."""
        # Unknown without another flow of the same sender, and one of the same receiver.
        count = len(self._nodes)
        explained = np.maximum(
            other_fastest(flows.sender, count, flows.log_time), other_fastest(flows.receiver, count, flows.log_time)
        )
        up, down = by_leaf[0, self._leaf[flows.sender]], by_leaf[1, self._leaf[flows.receiver]]
        explained = np.where(is_near, explained, np.fmax(explained, np.fmax(up, down)))
        return np.asarray(flows.log_time - explained, np.float32)

    def _judge_flows(self, flows: Flows, log_times: Floats) -> Iterator[Verdict]:
        """Judge each flow by its log time ``(n_flows,)``; of a pair both directions are told at once."""
        if not len(flows) and not self._flow_names:
            return
        places = self._places(flows)
        whole = np.full(len(self._flow_names), np.nan, np.float32)
        whole[places] = log_times
        kind: LinkKind = "link" if self._is_link else "pair"
        judge = self._of_flows
        for verdict in _sure(judge.update_arrays(self._flow_names, np.exp(whole)[:, None], now_s=self._round)):
            names = (verdict.host, verdict.gpu or self._nodes[1 - self._number_of[verdict.host]])
            if frozenset(names) in self._told_pairs:
                continue
            self._told_pairs.add(frozenset(names))
            side: Side = "both" if judge.suspects((names[1], names[0])) else ""
            rounds = self._rounds_of(judge, [names])
            yield _verdict(SlowLink(kind, names, side, verdict.slowdown, len(self._nodes) - 1, rounds))

    def _again(self, flows: Flows, is_slow: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which flows are slow now, and were when they were last measured: a burst of others is soon over."""
        places = self._places(flows)
        before = self._was_slow[places]
        self._was_slow[places] = is_slow
        return np.asarray(is_slow & before)

    def _places(self, flows: Flows) -> NDArray[np.intp]:
        """Return the places of flows; those that were not seen before get one after the others."""
        codes = flows.sender * len(self._nodes) + flows.receiver
        new = np.setdiff1d(codes, self._flow_codes)
        if len(new):
            self._flow_codes = np.concatenate([self._flow_codes, new])
            self._was_slow = np.concatenate([self._was_slow, np.zeros(len(new), np.bool_)])
            self._order = np.argsort(self._flow_codes)
            ends = (divmod(code, len(self._nodes)) for code in new.tolist())
            self._flow_names += tuple((self._nodes[sender], self._nodes[receiver]) for sender, receiver in ends)
        return self._order[np.searchsorted(self._flow_codes, codes, sorter=self._order)]

    # -- what the job itself sends -------------------------------------------------------------------------------------

    def _note_busy(self, flows: Flows) -> None:
        """Note the nodes that had no calm transfer for three rounds."""
        ends = np.concatenate([flows.sender, flows.receiver])
        quiet = np.tile(flows.calm(), 2)
        there = np.bincount(ends, minlength=len(self._nodes)) > 0
        calm = np.bincount(ends, quiet, len(self._nodes)) > 0
        self._busy_rounds = np.where(calm, 0, self._busy_rounds + there)
        busy = np.flatnonzero((self._busy_rounds == _BUSY_ROUNDS) & there)
        self._notices += [LinkBusy(self._nodes[number], _BUSY_ROUNDS) for number in busy.tolist()]


def _judge(devices: Iterable[DeviceId], budget: float, min_slowdown: float) -> SlowGPUAnalysis:
    """Return an analysis in which all devices are of one kind: two slow ones alike are not another model."""
    analysis = SlowGPUAnalysis(
        false_alarm_budget=budget, min_slowdown=min_slowdown, groups={}, peer_slowdown=min_slowdown
    )
    analysis.expect(devices)
    return analysis


def _sides(names: Iterable[str]) -> list[DeviceId]:
    names = list(names)
    return [(name, side) for side in _SIDES for name in names]


def _side(gpu: str | None) -> Side:
    return next((side for side in _SIDES if side == gpu), "both")


def link_of(verdict: Verdict) -> SlowLink:
    """Return the link that a verdict of this analysis is about."""
    if not isinstance(verdict.evidence.found, SlowLink):
        raise TypeError(f"{verdict!r} is not about a link")
    return verdict.evidence.found


def _verdict(found: SlowLink) -> Verdict:
    """Return a verdict; only for a node would a restart help."""
    severity: Severity = "very slow" if found.slowdown >= VERY_SLOW else "slow"
    action: Action = "restart" if found.kind == "node" else "report"
    host = found.names[0]
    return Verdict(host, None, found.slowdown, severity, Evidence(host, None, found), action=action)


def _sure(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.action == "restart"]
