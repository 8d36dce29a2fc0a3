"""Which pairs of nodes exchange transfers when: every node computes the same schedule, so that nobody coordinates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain

Pair = tuple[str, str]
"""Two nodes that probe the link between them."""
Rounds = Callable[[int], list[list[Pair]]]
"""Returns the round of a number: a list of sub-rounds, in which a node is in one pair at most."""

_ALL_MEET = 16  # up to so many nodes everybody meets everybody; with more, each node keeps its partners of a launch
_KEPT = 8  # partners of a launch, and as many connections


def circle(order: Sequence[str], most: int | None = None) -> list[list[Pair]]:
    """Return the sub-rounds in which everybody meets everybody once: N - 1 of them, or N if N is odd; or the first few.

    The first node stays, the others move on by one place per sub-round (the circle method of tournaments).  With an
    odd number, one node has no partner in each sub-round.
    """
    places: list[str | None] = [*order, *([None] * (len(order) % 2))]
    half = len(places) // 2
    sub_rounds = []
    for _ in range(len(places) - 1)[:most]:
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        sub_rounds.append([(one, other) for one, other in facing if one is not None and other is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return sub_rounds


def rounds_of(nodes: Sequence[str], seed: str, leaves: Mapping[str, str] | None = None, partners: int = 3) -> Rounds:
    """Return the rounds of a launch."""
    # Two nodes meet as often in a round as others meet partners, since one transfer alone is too noisy. Up to 16 nodes
    # everybody meets everybody in turn; with more, each node keeps eight partners for the launch. If the leaves are
    # known, half of a round's sub-rounds (of three: one) join nodes below the same leaf and the others nodes below
    # different ones, so that a slow uplink is not taken for slow nodes.
    if partners < 1:
        raise ValueError(f"partners must be at least 1, got {partners}")
    order = sorted(nodes, key=lambda node: _drawn(seed, node))
    kept = None if len(order) <= _ALL_MEET else _KEPT
    if len(order) == 2:
        only = [[(order[0], order[1])]] * partners
        return lambda _: only
    below = _by_leaf(order, leaves or {})
    if len(below) < 2 or max(map(len, below)) < 2:
        return _in_turn((circle(order, kept), partners))
    kept = kept and kept // 2
    leaf_of = {node: number for number, members in enumerate(below) for node in members}
    far = [_across(sub_round, leaf_of) for sub_round in circle(order, kept)]
    return _in_turn((_side_by_side(list(map(circle, below)))[:kept], partners // 2), (far, partners - partners // 2))


def partner_in(sub_round: Sequence[Pair], node: str) -> str | None:
    """Return whom a node meets in a sub-round; None: nobody."""
    return next((other if one == node else one for one, other in sub_round if node in {one, other}), None)


def with_pairs(sub_rounds: Sequence[list[Pair]], pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return a round in which these pairs meet as well, as far as no node is in two of them.

    There are no more transfers than before: whom the two were to meet last meet each other, unless they do so anyway.
    """
    *others, last = sub_rounds
    met = set(map(frozenset, chain(*sub_rounds)))
    moved: set[str] = set()
    for pair in map(frozenset, pairs):
        apart = [each for each in last if not pair.isdisjoint(each)]
        nodes = pair.union(*apart)
        left = nodes - pair
        if pair in met:
            moved |= set() if left else pair
        elif not nodes & moved:
            moved |= nodes
            together = [pair, left] if len(left) == 2 and left not in met else [pair]
            last = [each for each in last if each not in apart] + [(min(each), max(each)) for each in together]
    return [*others, last]


def _drawn(seed: str, node: str) -> bytes:
    """Return a number that orders the nodes by chance, the same on every machine and in every version of Python."""
    return sha256(f"{seed}\0{node}".encode()).digest()


def _by_leaf(order: Sequence[str], leaves: Mapping[str, str]) -> list[list[str]]:
    below = defaultdict(list)
    for node in order:
        below[leaves.get(node, "")].append(node)
    return list(below.values())


def _side_by_side(circles: Sequence[list[list[Pair]]]) -> list[list[Pair]]:
    """Return the sub-rounds of several circles at once; a short circle begins anew while longer ones go on."""
    length = max(map(len, circles))
    return [list(chain(*(each[place % len(each)] for each in circles if each))) for place in range(length)]


def _in_turn(*cycles: tuple[list[list[Pair]], int]) -> Rounds:
    """Return rounds that take so many sub-rounds of each cycle in turn, and no sub-round twice."""
    takes = [(sub_rounds, min(share, len(sub_rounds))) for sub_rounds, share in cycles]
    return lambda number: [
        sub_rounds[(number * share + place) % len(sub_rounds)] for sub_rounds, share in takes for place in range(share)
    ]


def _across(sub_round: Sequence[Pair], leaf_of: Mapping[str, int]) -> list[Pair]:
    """Exchange partners until all pairs join different leaves, as far as no leaf has more than half of the nodes."""
    pairs = list(sub_round)
    for place, (one, other) in enumerate(pairs):
        leaf = leaf_of[one]
        if leaf != leaf_of[other]:
            continue
        for place_of_others, others in enumerate(pairs):
            if leaf not in (leaf_of[others[0]], leaf_of[others[1]]):
                pairs[place], pairs[place_of_others] = (one, others[0]), (other, others[1])
                break
    return [(one, other) for one, other in pairs if leaf_of[one] != leaf_of[other]]
