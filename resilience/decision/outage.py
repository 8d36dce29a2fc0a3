"""What counts as an outage, when to ask next, and when it is over. Pure: answers and times are passed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laggard.resilience.decision.failure import Failure
from laggard.resilience.reading.targets import NoAnswer, Target

FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 10.0
# Between two looks at what has been away for long lies this share of that time.
_SHARE = 0.25
# One may come from a service that is still starting, or from one of several servers.
ANSWERS_IN_A_ROW = 2
# After so many looks without it, the program no longer uses what it was connected to.
FORGOTTEN_AFTER = 10
MAX_ASKED = 8

Groups = Sequence[Sequence[Target]]
"""Things to ask about, each with all its addresses."""


def outage_among(
    groups: Groups, answers: Sequence[NoAnswer | None], *, passed: bool
) -> tuple[Sequence[Target], NoAnswer] | None:
    """Return the first group of which no address answers, and why the first does not; None if there is none.

    Parameters
    ----------
    groups
        What may be away.
    answers
        Why each address does not answer, or None if it does, in the order of the groups; empty if that is not known.
    passed
        Whether a launch has got further than this one: only then may a file that is missing have been there.
    """
    rest = iter(answers)
    for group in groups if answers else ():
        whys = [why for _ in group if (why := next(rest)) is not None]
        if len(whys) == len(group) and (passed or whys[0].kind != "missing"):
            return group, whys[0]
    return None


def may_be_an_outage(failure: Failure) -> bool:
    """Return whether a failure that names nothing may come of something that is away."""
    return (failure.exit_code or 0) > 0 and failure.kind in ("network", "transient", "unknown")


class Connected:
    """What the launches of a job were connected to, but for the job itself."""

    def __init__(self) -> None:
        self._unseen: dict[Target, int] = {}  # looks since each was seen

    def take(self, seen: Iterable[Target], own: Iterable[tuple[str, int | None]]) -> None:
        """Take what a look at running processes has found; ``own``: addresses of the job, None for every port."""
        own = {*own}
        others = [each for each in seen if not own & {(each.host, each.port), (each.host, None)}]
        older = {target: unseen + 1 for target, unseen in self._unseen.items() if unseen < FORGOTTEN_AFTER}
        self._unseen = older | dict.fromkeys(others, 0)

    def groups(self) -> Groups:
        """Return what to ask about, what was seen last first."""
        return [[target] for target, _ in sorted(self._unseen.items(), key=lambda each: each[1])[:MAX_ASKED]]

    def __contains__(self, target: Target) -> bool:
        return any((each.host, each.port, each.of) == (target.host, target.port, "") for each in self._unseen)


class OutageWatch:
    """Follows one outage; times are monotonic seconds."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._n_answers = 0
        self._asked_s = now_s
        self._next_s = now_s + FIRST_WAIT_S

    def asks(self, now_s: float) -> bool:
        """Return whether it is time to ask again, which then counts as done."""
        if now_s < self._next_s:
            return False
        self._asked_s = now_s
        return True

    def take(self, answers: Sequence[NoAnswer | None], now_s: float) -> bool:
        """Take the answers to a question; return whether the outage is over."""
        self._next_s = now_s + FIRST_WAIT_S
        if not answers:  # nobody knows
            return False
        self._n_answers = self._n_answers + 1 if None in answers else 0
        if not self._n_answers:  # that nothing answers may have taken its time
            wait_s = min(LONGEST_WAIT_S, _SHARE * (now_s - self._since_s))
            self._next_s = max(self._next_s, self._asked_s + wait_s)
        return self._n_answers >= ANSWERS_IN_A_ROW
