"""Copies between the GPUs of this machine, each pair once: ``python -m laggard.collectors.links.peer_check NAME...``.

It prints one line of JSON. It is a process of its own because a call into a stuck driver may never return.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

from laggard.collectors.links.peer_copies import PeerCopies, gpus_here
from laggard.collectors.links.reading import PeerReading
from laggard.records import plain


@dataclass(frozen=True, slots=True)
class PeerCheck:
    """What was measured between a machine's GPUs."""

    # One reading for each way of each pair; none with fewer than two GPUs, or without CuPy
    peers: tuple[PeerReading, ...] = ()
    failure: str = ""  # why there are none; empty if there is no reason


def check_peers(names: Collection[str]) -> PeerCheck:
    """Copy between all of the named GPUs, one pair after another."""
    devices = gpus_here(names)
    pairs = combinations([device.gpu for device in devices], 2)
    return PeerCheck(tuple(PeerCopies(devices).run(pairs)))


if __name__ == "__main__":
    print(json.dumps(plain(check_peers(sys.argv[1:]))), flush=True)
