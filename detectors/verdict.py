"""Verdict: what a detector holds against a device or node, and the evidence; stored, acted upon and printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.detectors import wording
from laggard.detectors.evidence import Found, Slow, Weighed, WrongResults
from laggard.records import plain, record_of

if TYPE_CHECKING:
    from laggard.collectors.device import DeviceId

Severity = Literal["suspect", "slow", "very slow", "faulty", "well again"]
Action = Literal["report", "restart"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is based on; its text is one sentence."""

    host: str  # whom it is about; `gpu` is `None` for a whole node
    gpu: str | None
    found: Found  # what was found
    own_past: bool = False  # whether it has become slower than it was; if not, it may have been so from the start
    worker: str = ""  # which rank is slow in which of the program's sections; empty if it was not found so
    section: str = ""
    weighed: Weighed | None = None  # what was decided about a restart; `None` if there was nothing to decide

    def __str__(self) -> str:
        return wording.evidence(self)

    @property
    def at_times(self) -> bool:
        """Whether it is slow again and again, and well in between."""
        return isinstance(self.found, Slow) and self.found.share is not None


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """A detector's finding against one device or one whole node, as it is stored and printed.

    Attributes
    ----------
    host
        Host name of the node.
    gpu
        The device's name on its node, as text; ``None`` accuses the whole node.
    slowdown
        Reading divided by its reference: 1.2 is 20 % slower; ``NaN`` if it is not known.
    severity
        ``suspect``, ``slow`` or ``very slow``; ``faulty`` if it computes wrong results; ``well again`` if it was slow
        and is no longer.
    evidence
        What the verdict is based on; ``str(verdict.evidence)`` is one sentence with the numbers.
    cause
        The likely cause; as text a few words, or ``unknown``.
    action
        ``restart`` asks for a relaunch without the node, ``report`` does not.
    """

    host: str
    gpu: str | None
    slowdown: float
    severity: Severity
    evidence: Evidence
    cause: Cause = UNKNOWN
    action: Action = "report"

    def __repr__(self) -> str:
        return f"<Verdict: {wording.verdict(self)}>"

    @classmethod
    def of_fault(cls, host: str, gpu: str, what: str) -> Verdict:
        """Return the verdict on a device that computes wrong results; that is certain, so no evidence is weighed."""
        return cls(host, gpu, math.nan, "faulty", Evidence(host, gpu, WrongResults(what)), action="restart")

    def to_fields(self) -> dict[str, Any]:
        """Return the verdict as values of JSON, with its words for readers that know none of its records."""
        words = {"evidence": str(self.evidence), "cause": str(self.cause) if self.cause.is_known else ""}
        return {**plain(self), "words": words}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Verdict:
        """Return the verdict of which :meth:`to_fields` returned the values."""
        return record_of(cls, fields)


def with_cause(verdict: Verdict, causes: Mapping[DeviceId, Cause]) -> Verdict:
    """Return the verdict with its likely cause; ``causes`` are by device."""
    if verdict.gpu is not None:
        return replace(verdict, cause=causes.get((verdict.host, verdict.gpu), UNKNOWN))
    known = [cause for (host, _), cause in causes.items() if host == verdict.host and cause.is_known]
    kinds = Counter(cause.kind for cause in known)
    usual = max(known, key=lambda cause: kinds[cause.kind], default=UNKNOWN)
    return replace(verdict, cause=usual)
