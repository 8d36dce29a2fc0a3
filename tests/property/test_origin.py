"""Who failed first: whatever the order in which ends are heard of, whatever the peers of the first one say."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.failure import Failure, explain
from laggard.resilience.decision.origin import ProcessEnd, by_one_clock
from laggard.system.clock_offset import ClockOffset

T0 = 1e9
N_RANKS = 8
LOST = (
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "EOFError",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4",
    "ncclRemoteError: A call failed possibly due to a network error",
    "torch.distributed.DistNetworkError: the peer does not answer",
    "MPI_ERR_PROC_FAILED: Process Failure",
    "grpc.RpcError: StatusCode.UNAVAILABLE: Socket closed",
    "HorovodInternalError: Horovod has been shut down",
    "read tcp 10.0.0.1:4->10.0.0.2:5: read: connection reset by peer",
)
WORDS = st.sampled_from(["", "KeyError: 7", "MyError: odd", "MemoryError", *LOST])
CODES = st.sampled_from([0, 1, 2, 3, 7, 137, 143, -6, -9, -11, -13, -15])
PYTHON = ("Traceback (most recent call last):", '  File "/me/train.py", line 3, in step')


def end(rank: int, exit_code: int = 1, words: str = "", at_s: float = 0.0) -> ProcessEnd:
    lines = (*PYTHON, words) if words else ()
    return ProcessEnd(f"node{rank}", 7, exit_code, T0 + at_s, 60.0, lines, rank=rank, place=rank)


def why(ends: list[ProcessEnd]) -> Failure:
    return explain(ends, {})


TIMES = st.floats(-2.0, 2.0)
ENDS = st.builds(
    lambda codes: [end(rank, *each) for rank, each in enumerate(codes)],
    st.lists(st.tuples(CODES, WORDS, TIMES), min_size=1, max_size=N_RANKS),
)
LOSERS = st.lists(st.tuples(st.integers(1, 127), st.sampled_from(LOST), TIMES), max_size=N_RANKS)


@given(st.permutations(range(N_RANKS)), st.integers(1, N_RANKS), CODES, WORDS, st.floats(0, 0.5))
def test_of_equals_the_lowest_rank_is_named_in_whatever_order_they_are_heard_of(
    order: list[int], n_ranks: int, code: int, words: str, uncertainty_s: float
) -> None:
    ranks = order[:n_ranks]
    ends = [end(rank, code or 1, words, at_s=uncertainty_s * place / N_RANKS) for place, rank in enumerate(ranks)]
    ends = by_one_clock(ends, {f"node{ranks[0]}": ClockOffset(0.0, uncertainty_s)})
    assert why(ends).rank == min(ranks)


@given(ENDS, st.randoms())
def test_the_order_in_which_ends_are_heard_of_changes_nothing_but_who_comes_first_in_a_list(
    ends: list[ProcessEnd], random: object
) -> None:
    if not any(each.exit_code for each in ends):
        return
    shuffled = list(ends)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = why(ends), why(shuffled)
    assert (first.host, set(first.hosts), first.exit_code) == (second.host, set(second.hosts), second.exit_code)


@given(st.sampled_from([-4, -6, -7, -8, -9, -11, 3, 5, 17]), TIMES, LOSERS, st.booleans())
def test_a_death_by_a_signal_or_in_silence_is_never_outvoted_by_lost_connections(
    code: int, at_s: float, losers: list[tuple[int, str, float]], first: bool
) -> None:
    origin = end(3, code, at_s=at_s)
    others = [end(rank + 4, *each) for rank, each in enumerate(losers)]
    failure = why([origin, *others] if first else [*others, origin])
    assert (failure.host, failure.hosts, failure.exit_code) == ("node3", ("node3",), code)
    assert all(each.lost_peer for each in failure.others)


@given(ENDS, LOSERS)
def test_one_more_that_lost_its_peer_never_changes_who_was_first(
    ends: list[ProcessEnd], losers: list[tuple[int, str, float]]
) -> None:
    if not any(each.exit_code for each in ends) or (before := why(ends)).lost_peer or before.exit_code == 0:
        return
    after = why([*ends, *(end(rank + N_RANKS, *each) for rank, each in enumerate(losers))])
    assert (after.host, after.rank, after.hosts, after.quote) == (before.host, before.rank, before.hosts, before.quote)


@given(ENDS, st.floats(-3600, 3600))
def test_by_how_much_all_clocks_are_wrong_does_not_matter(ends: list[ProcessEnd], shift_s: float) -> None:
    if not any(each.exit_code for each in ends):
        return
    shifted = [replace(each, ended_s=each.ended_s + shift_s) for each in ends]
    corrected = by_one_clock(shifted, {each.host: ClockOffset(shift_s, 0.0) for each in ends})
    assert why(corrected).exit_code == why(by_one_clock(ends, {})).exit_code
