"""What counts as an outage, when to ask next, and when it is over. Pure: answers and times are passed in."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.resilience.decision.targets import NoAnswer, Target

FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 10.0
# Between two looks at what has been away for long lies this share of that time.
_SHARE = 0.25
# One may come from a service that is still starting, or from one of several servers.
ANSWERS_IN_A_ROW = 2


def outage_among(
    targets: Sequence[Target], answers: Sequence[NoAnswer | None], *, passed: bool
) -> tuple[Target, NoAnswer] | None:
    """Return the first target and why it does not answer, if none of them does; None otherwise.

    Parameters
    ----------
    targets
        What one line names: addresses of one thing.
    answers
        Why each does not answer, or None if it does; empty if that is not known.
    passed
        Whether a launch has got further than this one: only then may a file that is missing have been there.
    """
    if not answers or len(answers) != len(targets) or None in answers:
        return None
    first = answers[0]
    if first is None or (first.kind == "missing" and not passed):
        return None
    return targets[0], first


class OutageWatch:
    """Follows one outage; times are monotonic seconds."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._n_answers = 0
        self._next_s = now_s + FIRST_WAIT_S

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to ask again."""
        return now_s >= self._next_s

    def take(self, answers: Sequence[NoAnswer | None], now_s: float) -> bool:
        """Take the answers to a question; return whether the outage is over."""
        if not answers:  # nobody knows
            self._next_s = now_s + FIRST_WAIT_S
            return False
        self._n_answers = self._n_answers + 1 if None in answers else 0
        wait_s = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, _SHARE * (now_s - self._since_s)))
        self._next_s = now_s + (FIRST_WAIT_S if self._n_answers else wait_s)
        return self._n_answers >= ANSWERS_IN_A_ROW
