"""What the policy has decided, with its reason in words, for tests that compare both."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.resilience.decision import wording
from laggard.resilience.decision.events import Decision, End


@dataclass(frozen=True)
class Ended:
    """The job ends with this exit code, for this reason."""

    exit_code: int
    reason: str


def ended(decision: Decision | object) -> Ended:
    """Return an end with its reason in words."""
    assert isinstance(decision, End), decision
    return Ended(decision.exit_code, wording.reason(decision.reason))
