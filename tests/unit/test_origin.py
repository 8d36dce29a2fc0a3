"""Who was first, by what each end is worth, when it was, and where several were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.failure import MAX_OTHERS, Failure, explain
from laggard.resilience.decision.origin import ProcessEnd

T0 = 1e9
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
# A peer may say so as well, and no table knows.
SHORT = "struct.error: unpack requires a buffer of 4 bytes"


def end(
    rank: int, exit_code: int | None = 1, words: str = "", at_s: float = 0.0, *, raised_s: float = 0.0
) -> ProcessEnd:
    lines = ("Traceback (most recent call last):", '  File "/me/train.py", line 3, in step', words) if words else ()
    raised = T0 + raised_s if raised_s else 0.0
    return ProcessEnd(f"node{rank}", 7, exit_code, T0 + at_s, 60.0, lines, rank=rank, raised_s=raised)


def why(*ends: ProcessEnd) -> Failure:
    return explain(ends, {})


@pytest.mark.parametrize(
    ("ends", "origin", "hosts"),
    [
        # a death, and a peer whose words no table knows: who died first
        ([end(1, -11, at_s=-0.3), end(0, 1, SHORT)], 1, (1,)),
        ([end(1, 3, at_s=-0.3), end(0, 1, SHORT)], 1, (1,)),
        ([end(1, -6, at_s=0.3), end(0, 1, "MyError: odd")], 0, (0,)),
        # a signal is noticed late
        ([end(1, -11), end(0, 1, SHORT, -0.05)], 1, (1,)),
        ([end(1, -11), end(0, 3, at_s=-0.05)], 1, (1,)),
        # an error counts from when it was raised, however long its rank then cleans up
        ([end(1, 1, "MyError: odd", 2.0, raised_s=-0.1), end(0, -6, at_s=0.4)], 1, (1,)),
        # an exit with 1 in silence is what a program does when its peer is gone, however early it is seen
        ([end(1, 1, "MyError: odd", 0.9), end(0, 1), end(2, 1)], 1, (1,)),
        ([end(1, 5, at_s=0.9), end(0, 1), end(2, -15)], 1, (1,)),
        # an error long before the end was survived
        ([end(1, -11), end(0, 1, "MyError: odd", 0.3, raised_s=-60)], 1, (1,)),
        # bad hardware is nobody's answer to the end of a peer
        ([end(1, 1, "RuntimeError: CUDA error: uncorrectable ECC error", 0.9), end(0, -6)], 1, (1,)),
        # most lose a peer alike, whenever that is noticed: who ended in another way
        ([end(0, 7), end(1, 7), end(2, 3, at_s=0.4)], 2, (2,)),
        ([end(0, 1, SHORT), end(1, 1, SHORT), end(2, 1, "MyError: odd", 0.4)], 2, (2,)),
        ([end(0, -6), end(1, -6), end(2, 1, "MyError: odd", 0.4)], 2, (2,)),
        ([end(0, 7), end(1, 7), end(2, 3, at_s=0.4), end(3, 4, at_s=0.5)], 0, (0, 1)),  # two nodes are no odd one
        ([end(0, -11), end(1, -11), end(2, 1, SHORT)], 0, (0, 1)),  # nobody is killed by the loss of a peer
        # several
        ([end(2, 1, "KeyError: 7", 0.4), end(1, 1, "KeyError: 7")], 1, (1, 2)),
        ([end(2, 1, "KeyError: 7"), end(1, 1, "OSError: odd", 0.4), end(0, 1, RESET)], 2, (2, 1)),
        ([end(2, -11), end(1, -11)], 1, (1, 2)),
        ([end(2, 3), end(1, 3, at_s=0.2)], 2, (2, 1)),
        ([end(1, 1, RESET), end(2, 1, RESET, at_s=0.5)], 1, (1, 2)),
        # who left in the middle of the work, and was missed
        ([end(1, 0, at_s=-0.5), end(0, 1, RESET), end(2, 1, RESET)], 1, (1,)),
        ([end(1, 0, at_s=0.5), end(0, 1, RESET)], 0, (0,)),
        ([end(1, 0, at_s=-100), end(0, 1, RESET)], 0, (0,)),
        ([end(1, 0, at_s=-0.5), end(0, 1, "MyError: odd")], 0, (0,)),
        ([end(1, 0, "MemoryError", at_s=-0.5), end(0, 3)], 0, (0,)),
    ],
)
def test_who_was_first_and_where(ends: list[ProcessEnd], origin: int, hosts: tuple[int, ...]) -> None:
    for heard in (ends, ends[::-1]):
        failure = why(*heard)
        assert failure.rank == origin
        assert set(failure.hosts) == {f"node{rank}" for rank in hosts}
        assert failure.hosts[0] == failure.host == f"node{origin}"


def test_who_catches_the_loss_of_a_peer_and_raises_something_else_has_still_lost_it() -> None:
    caught = (
        *("Traceback (most recent call last):", '  File "/me/ring.py", line 3, in receive', RESET, ""),
        *("During handling of the above exception, another exception occurred:", ""),
        *("Traceback (most recent call last):", '  File "/me/ring.py", line 9, in step', "KeyError: 'peer'"),
    )
    failure = why(replace(end(0), lines=caught), end(1, 3, at_s=0.9))
    assert (failure.host, failure.others[0].lost_peer) == ("node1", True)


@pytest.mark.parametrize(
    ("code", "lost"),
    [("n, = struct.unpack('!I', sock.recv(4))", True), ("n, = struct.unpack('!I', file.read(4))", False)],
)
def test_data_that_was_cut_short_is_a_lost_peer_only_if_it_came_from_a_socket(code: str, *, lost: bool) -> None:
    frame = ("Traceback (most recent call last):", '  File "/me/ring.py", line 3, in receive', f"    {code}")
    assert why(replace(end(0), lines=(*frame, SHORT))).lost_peer == lost


def test_a_rank_that_left_does_not_end_the_job_with_0() -> None:
    failure = why(end(1, 0, at_s=-0.5), end(0, 1, RESET))
    assert (failure.exit_code, failure.job_exit_code) == (0, 1)
    assert wording.failure(failure) == (
        "rank 1 on node1 exited with 0 after 60.0 s; also ended: rank 0 on node0 (lost its peer)"
    )


def test_a_copy_without_a_rank_is_told_apart_by_its_place_in_the_launch() -> None:
    ends = [replace(end(3 - place), rank=None, place=place) for place in (2, 0, 1)]
    assert why(*ends).host == "node3"


def test_the_device_of_the_rank_is_known() -> None:
    assert why(replace(end(1, -11), device="1"), replace(end(0, 1, RESET), device="0")).device == "1"


def test_the_sentence_names_who_else_has_ended_and_when() -> None:
    failure = why(end(1, -9), end(2, -11, at_s=0.12), end(3, 1, RESET), replace(end(4, 3, at_s=-0.01), rank=None))
    assert wording.failure(failure) == (
        "rank 1 on node1 was killed by SIGKILL after 60.0 s; also ended: node4 with 3 at the same moment, "
        "rank 2 on node2 by SIGSEGV 0.1 s later, rank 3 on node3 (lost its peer)"
    )


@pytest.mark.parametrize(
    ("n_lost", "more"),
    [(3, ""), (4, " and 1 other that lost its peer"), (63, " and 60 others that lost their peer")],
)
def test_of_many_only_the_first_are_named(n_lost: int, more: str) -> None:
    failure = why(end(0, -9), *(end(rank, 1, RESET) for rank in range(1, 1 + n_lost)))
    assert wording.failure(failure).endswith(f"rank 3 on node3 (lost its peer){more}")
    assert len(failure.others) + failure.n_more == n_lost
    assert len(failure.others) <= MAX_OTHERS


ACTOR_DIED = "ray.exceptions.ActorDiedError: the actor died"


@pytest.mark.parametrize(("code", "how"), [(None, "ended after 60.0 s; Ray does not know how"), (5, "exited with 5")])
def test_of_a_worker_of_rays_no_more_is_said_than_what_ray_knows(code: int | None, how: str) -> None:
    worker = replace(end(1, code), is_worker=True, rank=None)
    failure = why(replace(end(0, 1, ACTOR_DIED), rank=None, stays=True), worker)
    assert wording.failure(failure).startswith(f"a Ray worker on node1 {how}")
    assert (failure.others, failure.job_exit_code, failure.for_want_of_memory().kind) == (
        *((), 1),
        "capacity" if code is None else "unknown",
    )


def test_a_worker_that_ended_before_the_program_failed_of_an_error_is_named_beside_it() -> None:
    worker = replace(end(1, None, at_s=-3), is_worker=True, rank=None)
    failure = why(replace(end(0, 1, "KeyError: 7"), rank=None, stays=True), worker)
    assert failure.host == "node0"
    assert wording.failure(failure).endswith("; also ended: a Ray worker on node1 3.0 s earlier")
