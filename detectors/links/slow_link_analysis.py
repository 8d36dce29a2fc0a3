"""SlowLinkAnalysis: who slows the transfers between nodes, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import Pair
from laggard.detectors.analysis.findings import slow_of
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.economics.episode import Episode
from laggard.detectors.evidence import LinkKind, Side, SlowLink
from laggard.detectors.links.flows import Flows, flows_of, other_fastest, ranked
from laggard.detectors.links.shared_paths import SharedPaths
from laggard.detectors.notices import LinkBusy, LinksSlower
from laggard.detectors.statistics.devices import codes_of
from laggard.detectors.statistics.readings import Floats
from laggard.detectors.statistics.thresholds import VERY_SLOW
from laggard.detectors.verdict import Action, Evidence, Severity, Verdict

_NODES, _LEAVES, _PAIRS = 0.8, 0.1, 0.1  # of the budget
_SIDES: tuple[Side, Side] = "sends", "receives"
_FEWEST_PARTNERS = 2  # with undisturbed transfers to one partner only, the pair may be to blame
_FEWEST_FLOWS = 4  # of a leaf, to two other leaves at least
_PAIR_SLOWDOWN = 1.2  # the smallest that matters of a single path: one of many that a node has
_NODES_PER_PAIR = 8  # that meets in each round: of eight nodes, four have another partner than the schedule says
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
        self.min_slowdown = min_slowdown
        self._nodes = tuple(nodes)  # all nodes of the launch
        self._number_of = {node: number for number, node in enumerate(self._nodes)}
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
        self._slow_flows = set[DeviceId]()  # that are suspected to be slow by themselves, or known to be
        self._is_single = np.zeros(2 * len(self._nodes), np.bool_)  # the nodes' devices all but one of whose paths are
        self._culprits = set[DeviceId]()  # nodes' devices that are known to be slow
        self._held: dict[str, SlowLink] = {}  # nodes with a single path that are slow
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
        self._note_busy(flows)
        flows = flows.undisturbed()
        culprits = [self._number_of[node] for node, _ in self._culprits]
        by_nodes = np.isin(flows.sender, culprits) | np.isin(flows.receiver, culprits)
        flows = flows.take(~self._shared.add(flows, by_nodes, now_s))
        if self._is_link:
            flows = flows.of_two_nodes()
            return list(self._judge_flows(self._named(flows), flows.log_time, now_s))
        is_near = self._leaf[flows.sender] == self._leaf[flows.receiver]
        flows = flows.without_classes(is_near)
        by_leaf = self._speed_of_leaves(flows, ~is_near)
        names = self._named(flows)
        by_node = self._speed_of_nodes(flows, is_near, names)
        found = [
            *self._told("leaf", self._of_leaves, by_leaf.reshape(-1, 1), now_s),
            *self._unless_single(self._told("node", self._of_nodes, by_node, now_s)),
        ]
        self._note_culprits(found)
        return [*found, *self._judge_flows(names, self._unexplained(flows, is_near, by_leaf), now_s)]

    def episode(self, node: str) -> Episode | None:
        """Return the slow episode that a node is in; ``None`` if it is well."""
        found = (self._of_nodes.episode((node, side)) for side in _SIDES)
        return max((each for each in found if each), key=lambda episode: episode.slowdown, default=None)

    def pairs_to_meet(self) -> list[Pair]:
        """Return the pairs that are to meet in each round until it is known whether they are slow, the worst first."""
        judge = self._of_flows
        if 2 * judge.learned < len(judge.devices):
            return []  # who meets more often would be the first to have a past, and nobody to compare it with
        pairs = dict.fromkeys(map(frozenset, map(_ends, judge.undecided())))
        return [(min(pair), max(pair)) for pair in pairs][: -(-len(self._nodes) // _NODES_PER_PAIR)]

    def take_notices(self) -> list[LinkBusy | LinksSlower]:
        """Return what is new, each thing once: whose links cannot be judged, and what many links share."""
        new, self._notices = self._notices, []
        return [*new, *self._shared.take_notices()]

    # -- nodes and leaves ----------------------------------------------------------------------------------------------

    def _speed_of_nodes(self, flows: Flows, is_near: NDArray[np.bool_], names: Sequence[DeviceId]) -> Floats:
        """Return each node's log times to its partners, ``(2 * n_nodes, n_partners)``; sending nodes first."""
        # A transfer that its other end slows down is left out, unless too few nodes have others to compare with; a node
        # with fewer than two is not judged.
        count = len(self._nodes)
        sends, receives = flows.sender, flows.receiver + count
        owner, other_end = np.concatenate([sends, receives]), np.concatenate([receives, sends])
        counts = np.array([device not in self._culprits for device in self._of_nodes.devices])[other_end]
        others = np.bincount(owner, counts, 2 * count) >= _FEWEST_PARTNERS
        counts |= np.count_nonzero(others) <= count
        is_good = np.array([name not in self._slow_flows for name in names], np.bool_)
        owner, is_good = owner[counts], np.tile(is_good, 2)[counts]
        table, _, sizes = ranked(owner, 2 * count, np.tile(flows.log_time, 2)[counts])
        table[sizes < _FEWEST_PARTNERS] = np.nan
        if len(self._leaves) > 1:  # far transfers alone may be slow by the uplink's fault
            near = np.bincount(owner, np.tile(is_near, 2)[counts] & is_good, 2 * count)
            table[(near == 0) & np.tile(self._below[self._leaf] > 1, 2)] = np.nan
        self._is_single = np.bincount(owner, is_good, 2 * count) < _FEWEST_PARTNERS
        return table

    def _note_culprits(self, found: Iterable[Verdict]) -> None:
        """Note whose side of a transfer is known to be slow: until it is well, the transfer says nothing of others."""
        for link in map(link_of, found):
            if link.kind == "node":
                self._culprits |= {(link.names[0], side) for side in _SIDES if link.side in (side, "both")}
        self._culprits = {device for device in self._culprits if self._of_nodes.suspects(device)}

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

    def _told(self, kind: LinkKind, judge: SlowGPUAnalysis, log_times: Floats, now_s: float) -> Iterator[Verdict]:
        """Judge nodes or leaves by their log times ``(n_devices, n_repeats)`` and tell of those that are slow."""
        if not judge.devices or not log_times.size:
            return
        others = len(judge.devices) // 2 - 1
        for verdict in _sure(judge.update_arrays(judge.devices, np.exp(log_times), now_s=now_s)):
            slow = slow_of(verdict)
            yield _verdict(SlowLink(kind, (verdict.host,), _side(verdict.gpu), slow.slowdown, others, slow.rounds))

    def _unless_single(self, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
        """Hold back verdicts on nodes with a single path that may be good, until they are as slow as a bad one is."""
        self._held |= {verdict.host: link_of(verdict) for verdict in verdicts}
        for host, link in [*self._held.items()]:
            episode = self.episode(host)
            slowdown = max(link.slowdown, episode.slowdown if episode else 0.0)
            is_single = self._is_single[self._number_of[host] :: len(self._nodes)].any()
            if episode and (slowdown >= _PAIR_SLOWDOWN or not is_single):
                del self._held[host]
                yield _verdict(replace(link, slowdown=slowdown))

    # -- flows ---------------------------------------------------------------------------------------------------------

    def _unexplained(self, flows: Flows, is_near: NDArray[np.bool_], by_leaf: Floats) -> Floats:
        """Return by how much each flow is slower than its ends and their leaves explain, ``(n_flows,)``."""
        # Unknown without another flow of the same sender, and one of the same receiver. The slower of these explains
        # it, unless that is a single one that may be a bad path itself, and the other one is nearer.
        count, times, owners = len(self._nodes), flows.log_time, (flows.sender, flows.receiver)
        ends = np.stack([other_fastest(owner, count, times) for owner in owners])
        has_one = np.stack([np.bincount(owner, minlength=count)[owner] == 2 for owner in owners])
        least, most = ends.min(axis=0), ends.max(axis=0)
        is_least = (has_one & (ends == most)).any(axis=0) & (most - least > np.log(_PAIR_SLOWDOWN))
        is_least &= times - least < most - times
        explained = np.where(is_least, least, most)
        up, down = by_leaf[0, self._leaf[flows.sender]], by_leaf[1, self._leaf[flows.receiver]]
        explained = np.where(is_near, explained, np.fmax(explained, np.fmax(up, down)))
        return np.asarray(flows.log_time - explained, np.float32)

    def _judge_flows(self, names: tuple[DeviceId, ...], log_times: Floats, now_s: float) -> Iterator[Verdict]:
        """Judge each flow by its log time ``(n_flows,)``; of a pair both directions are told at once."""
        kind: LinkKind = "link" if self._is_link else "pair"
        judge = self._of_flows
        found = _sure(judge.update_arrays(names, np.exp(log_times)[:, None], now_s=now_s))
        self._slow_flows = {flow for flow in (*self._slow_flows, *judge.undecided()) if judge.suspects(flow)}
        for verdict in found:
            slow, ends = slow_of(verdict), _ends((verdict.host, ""))
            if frozenset(ends) not in self._told_pairs:
                self._told_pairs.add(frozenset(ends))
                side: Side = "both" if judge.suspects(_flow(*ends[::-1])) else ""
                yield _verdict(SlowLink(kind, ends, side, slow.slowdown, len(self._nodes) - 1, slow.rounds))

    def _named(self, flows: Flows) -> tuple[DeviceId, ...]:
        ends = zip(flows.sender.tolist(), flows.receiver.tolist(), strict=True)
        return tuple(_flow(self._nodes[sender], self._nodes[receiver]) for sender, receiver in ends)

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
    analysis = SlowGPUAnalysis(false_alarm_budget=budget, min_slowdown=min_slowdown)
    analysis.expect(devices)
    return analysis


def _flow(sender: str, receiver: str) -> DeviceId:
    """Return the name of a flow among devices: each is a host of its own."""
    return f"{sender} {receiver}", ""


def _ends(flow: DeviceId) -> Pair:
    sender, receiver = flow[0].split(" ")
    return sender, receiver


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
