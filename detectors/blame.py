"""The cause of a verdict: what its device's driver tells, or what most devices of its node have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from collectors.causes import UNKNOWN
from detectors.rounds import DeviceKey
from detectors.verdict import Verdict

__all__ = ["with_cause"]


def with_cause(verdict: Verdict, causes: Mapping[DeviceKey, str]) -> Verdict:
    """Return the verdict with its likely cause; ``causes`` are the devices' own."""
    if verdict.gpu is not None:
        return replace(verdict, cause=causes.get((verdict.host, verdict.gpu), UNKNOWN))
    of_node = [cause for (host, _), cause in causes.items() if host == verdict.host]
    kinds = Counter(_kind(cause) for cause in of_node if cause != UNKNOWN)
    if not kinds:
        return verdict
    kind, count = kinds.most_common(1)[0]
    told = next(cause for cause in of_node if _kind(cause) == kind)
    return replace(verdict, cause=f"{told} (as on {count} of its {len(of_node)} devices)")


def _kind(cause: str) -> str:
    return cause.partition(":")[0]
