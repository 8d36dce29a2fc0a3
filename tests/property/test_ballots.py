"""Whoever takes over sees every change of the copy that counted, and whom it took over from can make none any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.ballots import Ballot, CopyRecord, is_majority, newest

HOSTS = ("n1", "n2", "n3", "n4", "n5")
some_hosts = st.frozensets(st.sampled_from(HOSTS))


def record(term: int, version: int) -> CopyRecord:
    return CopyRecord(term, version, "job", "n1", HOSTS, holder=f"n{version % 5 + 1}", copy=f"{term}.{version}")


class Controller:
    """Tries to have its records accepted; which nodes it reaches is up to the test."""

    def __init__(self, term: int) -> None:
        self.term, self.version = term, 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), some_hosts), max_size=40))
def test_a_change_that_counts_is_seen_by_every_later_term(schedule: list[tuple[bool, int, frozenset[str]]]) -> None:
    """Each step: somebody takes over, or one of the last controllers changes the copy, reaching some nodes."""
    ballots = dict.fromkeys(HOSTS, Ballot())
    controllers: list[Controller] = []
    counting: CopyRecord | None = None  # the last change that counts
    for takes_over, which, reached in schedule:
        if takes_over:
            term = 1 + max([ballot.promised for host, ballot in ballots.items() if host in reached], default=0)
            promised = {h: b for h in reached if (b := ballots[h].promise(term)) is not None}
            ballots |= promised
            if is_majority(promised, HOSTS):
                seen = newest(promised.values())
                assert counting is None or (seen is not None and seen.order >= counting.order)
                assert all(each.term < term for each in controllers)
                controllers.append(Controller(term))
        elif controllers:
            controller = controllers[-1 - which % len(controllers)]
            controller.version += 1
            proposal = record(controller.term, controller.version)
            accepted = {h: b for h in reached if (b := ballots[h].accept(proposal)) is not None}
            ballots |= accepted
            if is_majority(accepted, HOSTS):
                assert controller is controllers[-1]
                counting = proposal


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_ballot_keeps_its_promises_on_paper(promised: int, term: int, version: int) -> None:
    ballot = Ballot(promised)
    after = ballot.accept(record(term, version))
    assert (after is None) == (term < promised)
    assert after is None or Ballot.of_json(after.to_json()) == after
    assert (ballot.promise(term) is None) == (term <= promised)
