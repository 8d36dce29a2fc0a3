"""A verdict: which device or node is slow, by how much, on what evidence, and what should be done."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["Action", "Severity", "Verdict"]

Severity = Literal["suspect", "slow", "very slow", "faulty"]
Action = Literal["report", "restart"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding of a detector against one device or one whole node.

    Attributes
    ----------
    host
        Host name of the node.
    gpu
        The device's name on its node, as text; ``None`` accuses the whole node.
    slowdown
        Reading divided by its reference: 1.2 is 20 % slower.
    severity
        ``suspect``, ``slow`` or ``very slow``; ``faulty`` if it computes wrongly.
    evidence
        One sentence with the numbers that the verdict stands on.
    cause
        The likely cause in a few words, or ``unknown``.
    action
        ``restart`` asks for a relaunch without the node, ``report`` only tells.
    """

    host: str
    gpu: str | None
    slowdown: float
    severity: Severity
    evidence: str
    cause: str = "unknown"
    action: Action = "report"

    @classmethod
    def of_fault(cls, host: str, gpu: str, what: str) -> Verdict:
        """Return the verdict on a device that computes wrongly; no chance is in that, so nothing is weighed."""
        return cls(host, gpu, math.nan, "faulty", f"{host} gpu {gpu}: {what}", action="restart")

    def to_json(self) -> str:
        """Return the verdict as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Verdict:
        """Read a verdict back from :meth:`to_json`'s text."""
        return cls(**json.loads(text))
