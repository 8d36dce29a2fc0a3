"""What ``laggard doctor`` says of the links between the GPUs of a node."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from laggard.collectors.links.peer_check import PeerCheck
from laggard.collectors.links.reading import PeerReading

MAX_SHOWN = 5
SHOWN_FROM = 1.1


def lines_on_gpu_links(checks: Mapping[str, PeerCheck]) -> list[str]:
    """Return the usual rate of each kind of path, and the slowest ways from GPU to GPU, each beside its own kind."""
    lines = [f"{host}: links between GPUs: {check.failure}" for host, check in checks.items() if check.failure]
    found = [(host, reading) for host, check in checks.items() for reading in check.peers]
    by_path: dict[str, list[float]] = defaultdict(list)
    for _, reading in found:
        by_path[reading.path].append(_s_per_byte(reading))
    usual = {path: statistics.median(values) for path, values in by_path.items()}
    slowdowns = [(_s_per_byte(reading) / usual[reading.path], host, reading) for host, reading in found]
    for slowdown, host, reading in sorted(slowdowns, key=lambda each: -each[0])[:MAX_SHOWN]:
        if slowdown >= SHOWN_FROM:
            pace = f"{_rate(_s_per_byte(reading))}{_by(reading.path)}, {slowdown:.1f} times as slow as the median"
            lines.append(f"{host} gpu {reading.sender} to {reading.receiver}: {pace}")
    rates = ", ".join(f"{_rate(each_s)}{_by(path)}" for path, each_s in sorted(usual.items(), key=lambda item: item[1]))
    return [*lines, f"{len(found)} ways between GPUs measured: median {rates}"] if found else lines


def _s_per_byte(reading: PeerReading) -> float:
    return reading.duration_s / reading.n_bytes


def _rate(s_per_byte: float) -> str:
    return f"{1e-9 / s_per_byte:.4g} GB/s"


def _by(path: str) -> str:
    return f" ({path})" if path else ""
