"""A simulated job whose nodes probe their links: what noise, bursts, traffic and faults do to transfers.

The log time of a transfer is the sum of what its class (below one leaf, or between leaves), its sender, its receiver,
its path and chance add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.links.schedule import Pair, partner_in, rounds_of, with_pairs
from laggard.detectors.links.flows import Flows

__all__ = ["Fault", "LinkJob", "Traffic", "leaves_of", "names_of", "noise_of_repeats"]

LEAF_NODES = 16
TRANSFER_S, FAR_TIMES = 0.034, 1.1
NODE_SHARE = PATH_SHARE = 0.01  # standard deviations in log seconds: of what nodes and paths differ by
NOISE, TAIL = 0.02, 3.0  # of a repeat: the standard deviation, and the degrees of freedom of its Student's t
REPEATS = 3
SPIKE_RATE, SPIKE_MEAN = 0.15, 0.15  # of a repeat, on top
BURST = (0.1, 1.0)  # what a burst of others adds to a whole reading, as a share


@dataclass(frozen=True)
class Fault:
    """What is slow, by how much, and from which round on (0: from the start).

    Attributes
    ----------
    kind
        ``node``, ``leaf``, ``pair``, ``network`` (all links), or ``halves``: the links between the first half of the
        nodes and the others, as fast as all before, in a job that does not know its leaves.
    sends, receives
        Which directions; a pair is slow from its first node to its second (``sends``) and back (``receives``).  Of the
        last two kinds both are.
    slowdown
        Ratio of times.
    partner
        The number of the pair's other node; ``None``: drawn from those that node 0 meets.
    """

    kind: Literal["node", "leaf", "pair", "network", "halves"]
    slowdown: float
    sends: bool = True
    receives: bool = False
    since: int = 0
    partner: int | None = None


@dataclass(frozen=True)
class Traffic:
    """What else is on the network.

    Attributes
    ----------
    bursts
        Share of readings that traffic of others, which no counter of the two nodes shows, makes 10 % to 100 % longer.
    burst_rounds
        For how many rounds such traffic stays on a path on average; 1: each reading is drawn anew.
    own
        Share of the rounds in which a node's program sends, 4 in a row on average: both ends' counters show it.
    deviation, lasts
        Standard deviation and autocorrelation of each path's normal noise, in place of what repeats have; 0: none.
    """

    bursts: float = 0.0
    burst_rounds: float = 1.0
    own: float = 0.0
    own_rounds: float = 4.0
    deviation: float = 0.0
    lasts: float = 0.0


def names_of(count: int) -> list[str]:
    """Return the names of so many nodes."""
    return [f"node{number}" for number in range(count)]


def leaves_of(count: int) -> dict[str, str] | None:
    """Return the leaf of each node: sixteen below one, if there are more."""
    if count <= LEAF_NODES:
        return None
    return {node: f"leaf{number // LEAF_NODES}" for number, node in enumerate(names_of(count))}


def noise_of_repeats(random: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return what is left of the noise of transfers if the fastest of three repeats counts."""
    repeats = NOISE * np.sqrt((TAIL - 2) / TAIL) * random.standard_t(TAIL, (REPEATS, *shape))
    repeats += random.exponential(SPIKE_MEAN, repeats.shape) * (random.random(repeats.shape) < SPIKE_RATE)
    return np.asarray(repeats.min(axis=0))


class LinkJob:
    """One job: the transfers of its rounds as the schedule has them.

    Parameters
    ----------
    count
        Number of nodes; node 0 is at fault, or its leaf, or the path between it and a partner.
    faults, traffic
        What goes wrong.
    seed
        Of everything that is drawn.
    partners
        How many partners a node has in a round.
    """

    def __init__(
        self,
        count: int,
        faults: Sequence[Fault] = (),
        traffic: Traffic | None = None,
        seed: int = 0,
        partners: int = 3,
    ) -> None:
        has_leaves = all(fault.kind != "halves" for fault in faults)
        self.nodes, self.leaves = names_of(count), leaves_of(count) if has_leaves else None
        self.traffic = traffic or Traffic()
        self._random = np.random.default_rng(seed)
        self._number_of = {node: number for number, node in enumerate(self.nodes)}
        self.leaf = np.arange(count) // LEAF_NODES if has_leaves else np.arange(count) * 2 // count
        self._rounds = rounds_of(self.nodes, f"job {seed}", self.leaves, partners)
        self._ends: dict[int, tuple[list[Pair], NDArray[np.intp]]] = {}
        self._offsets = self._random.normal(0.0, NODE_SHARE, (2, count))
        self._paths_seed = int(self._random.integers(2**32))
        self._busy = np.zeros(count, np.bool_)
        self._bursts = np.zeros((count, count) if self.traffic.burst_rounds > 1 else (0, 0))
        self._number = 0
        self._noise = self._random.normal(0.0, self.traffic.deviation, (count, count)) if self.traffic.lasts else None
        sub_rounds = chain(*map(self._rounds, range(LEAF_NODES)))
        meets = {partner for pairs in sub_rounds if (partner := partner_in(pairs, self.nodes[0]))}
        drawn = int(np.random.default_rng([seed, 1]).choice(sorted(self._number_of[node] for node in meets)))
        self.faults = [each if each.partner else replace(each, partner=drawn) for each in faults]

    def rounds(self, count: int, pairs: Callable[[], Sequence[Pair]] = list) -> Iterator[Flows]:
        """Yield the flows of the next rounds, in each of which the pairs that are told then meet as well."""
        for sub_rounds in map(self._rounds, range(self._number, self._number + count)):
            yield self.flows_between(np.concatenate(list(map(self._ends_of, with_pairs(sub_rounds, pairs()))), axis=1))
            self.next_round()

    def _ends_of(self, pairs: list[Pair]) -> NDArray[np.intp]:
        """Return the pairs as numbers, ``(2, n_pairs)``; sub-rounds come back, so they are kept with their pairs."""
        kept = self._ends.get(id(pairs))
        if kept is None or kept[0] is not pairs:
            ends = np.array([[self._number_of[node] for node in pair] for pair in pairs], np.intp).reshape(-1, 2).T
            kept = self._ends[id(pairs)] = pairs, ends
        return kept[1]

    def next_round(self) -> None:
        """Go on to the next round: programs begin or end to send on nodes, and others on paths."""
        self._busy = self._goes_on(self._busy, self.traffic.own, self.traffic.own_rounds)
        if self._bursts.size:
            goes_on = self._goes_on(self._bursts > 0, self.traffic.bursts, self.traffic.burst_rounds)
            new = np.log1p(self._random.uniform(*BURST, self._bursts.shape))
            self._bursts = np.where(goes_on, np.where(self._bursts > 0, self._bursts, new), 0)
        self._number += 1

    def _goes_on(self, is_on: NDArray[np.bool_], share: float, rounds: float) -> NDArray[np.bool_]:
        ends = 1 / rounds
        begins = ends * share / max(1e-9, 1 - share)
        chance = self._random.random(is_on.shape)
        return np.where(is_on, chance >= ends, chance < begins)

    def flows_between(self, ends: NDArray[np.intp]) -> Flows:
        """Return the flows of these pairs, ``(2, n_pairs)``, both ways, in this round."""
        sender, receiver = np.concatenate([ends, ends[::-1]], axis=1)
        log_time = self._usual(sender, receiver) + self._chance(sender, receiver)
        for fault in self.faults:
            if self._number >= fault.since:
                log_time += np.log(fault.slowdown) * self._is_slow(fault, sender, receiver)
        foreign = self._foreign(sender, receiver)
        log_time += np.log1p(foreign)
        return Flows(sender, receiver, log_time.astype(np.float32), foreign.astype(np.float32))

    def _usual(self, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> NDArray[np.float64]:
        is_far = (self.leaf[sender] != self.leaf[receiver]) & (self.leaves is not None)
        times = np.log(TRANSFER_S) + np.log(FAR_TIMES) * is_far + self._offsets[0, sender] + self._offsets[1, receiver]
        # A path's own share must be the same in each round: drawn from a hash of its ends.
        mixed = (sender * np.intp(2_654_435_761) + receiver * np.intp(40_503) + self._paths_seed) % 65_521
        mixed = mixed * mixed % 65_521
        return np.asarray(times + PATH_SHARE * np.sqrt(12.0) * (mixed / 65_521 - 0.5))

    def _chance(self, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> NDArray[np.float64]:
        count, deviation, lasts = len(sender), self.traffic.deviation, self.traffic.lasts
        if deviation:
            fresh = self._random.normal(0.0, deviation, count)
            if self._noise is None:
                return fresh
            self._noise[sender, receiver] *= lasts
            self._noise[sender, receiver] += np.sqrt(1 - lasts**2) * fresh
            return np.asarray(self._noise[sender, receiver])
        noise = noise_of_repeats(self._random, count)
        if self._bursts.size:
            return np.asarray(noise + self._bursts[sender, receiver])
        is_burst = self._random.random(count) < self.traffic.bursts
        return np.asarray(noise + is_burst * np.log1p(self._random.uniform(*BURST, count)))

    def _foreign(self, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the share of the job's own traffic on each flow."""
        share = np.where(self._busy, self._random.uniform(*BURST, len(self._busy)), 0.0)
        return np.asarray(np.maximum(share[sender], share[receiver]))

    def _is_slow(self, fault: Fault, sender: NDArray[np.intp], receiver: NDArray[np.intp]) -> NDArray[np.bool_]:
        if fault.kind == "node":
            out, back = sender == 0, receiver == 0
        elif fault.kind == "leaf":
            is_far = self.leaf[sender] != self.leaf[receiver]
            out, back = is_far & (self.leaf[sender] == 0), is_far & (self.leaf[receiver] == 0)
        elif fault.kind in {"network", "halves"}:
            return np.asarray((self.leaf[sender] != self.leaf[receiver]) | (fault.kind == "network"))
        else:
            out = (sender == 0) & (receiver == fault.partner)
            back = (sender == fault.partner) & (receiver == 0)
        return np.asarray((out & fault.sends) | (back & fault.receives))
