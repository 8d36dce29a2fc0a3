"""Where ranks stand, and which of them the others wait for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.hang import RankLife, Suspicion
from laggard.resilience.decision.stacks import (
    Frame,
    RankStack,
    groups_of,
    is_hang,
    odd_ones,
    own_frames,
    parse_faulthandler,
    standstill_of,
    with_unread,
)

SITE = "/opt/venv/lib/python3.11/site-packages"
MAIN = Frame("<module>", "/home/u/train.py", 200)
STEP = Frame("step", "/home/u/train.py", 88)
ALL_REDUCE = (
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3252),
    Frame("_exception_logger.<locals>.wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83),
    STEP,
    MAIN,
)
BACKWARD = (
    Frame("_engine_run_backward", f"{SITE}/torch/autograd/graph.py", 823),
    Frame("backward", f"{SITE}/torch/autograd/__init__.py", 347),
    Frame("backward", f"{SITE}/torch/_tensor.py", 581),
    STEP,
)
LOAD = (Frame("load_batch", "/home/u/data.py", 41), STEP, MAIN)
SLEEP = (Frame("sleep", "/usr/lib/python3.11/time.py", 1), Frame("wait_a_little", "/home/u/data.py", 7), MAIN)


def worded(stacks: list[RankStack]) -> str:
    found = standstill_of(stacks)
    assert found is not None
    return wording.standstill(found)


def rank(number: int, frames: tuple[Frame, ...] = ALL_REDUCE, state: str = "S", *, active: bool = False) -> RankStack:
    host = f"node{number // 2 + 1}"
    return RankStack(host, number, 100 + number, state, "", active, (frames,) if frames else ())


def others(*but: int, frames: tuple[Frame, ...] = ALL_REDUCE, of: int = 64) -> list[RankStack]:
    return [rank(number, frames) for number in range(of) if number not in but]


def test_a_rank_in_a_read_that_does_not_return_is_named_with_its_place() -> None:
    stacks = [*others(17), rank(17, LOAD, "D")]
    assert worded(stacks) == (
        "63 ranks wait in all_reduce (train.py:88); rank 17 on node9 is in load_batch (data.py:41), disk sleep"
    )
    assert odd_ones(stacks) == (stacks[-1],)


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (rank(3, LOAD, "R", active=True), "rank 3 on node2 is in load_batch (data.py:41)"),
        (rank(3, SLEEP), "rank 3 on node2 is in sleep (data.py:7)"),
        (rank(3, ALL_REDUCE, "T"), "rank 3 on node2 is in all_reduce (train.py:88), stopped"),
        (rank(3, (), "T"), "rank 3 on node2 is stopped"),
        (rank(3, BACKWARD), "rank 3 on node2 waits in backward (train.py:88)"),
        (replace(rank(3, LOAD), rank=None), "the program on node2 is in load_batch (data.py:41)"),
    ],
)
def test_the_odd_one_of_four_is_found_and_described(odd: RankStack, sentence: str) -> None:
    stacks = [odd, *others(3, of=4)]
    assert odd_ones(stacks) == (odd,)
    assert worded(stacks) == f"3 ranks wait in all_reduce (train.py:88); {sentence}"


@pytest.mark.parametrize("active", [False, True])
def test_a_rank_that_cannot_be_read_is_named_so_and_neither_waits_nor_is_to_blame(*, active: bool) -> None:
    stacks = [*others(3, of=4), replace(rank(3, ()), active=active)]
    spins = [replace(stack, active=True) for stack in stacks[:3]]
    assert worded(stacks) == "3 ranks wait in all_reduce (train.py:88); rank 3 on node2 cannot be read"
    assert odd_ones([*spins, stacks[3]]) == ()
    assert odd_ones([*stacks[:2], rank(2, LOAD), stacks[3]]) == (rank(2, LOAD),)
    assert odd_ones([rank(0, ()), rank(1, ()), rank(2, ()), rank(3, LOAD)]) == ()


@pytest.mark.parametrize("odd", [replace(rank(3, ()), active=True), replace(rank(3, ()), waits_in="do_sys_pause")])
def test_compiled_code_that_is_not_at_a_socket_while_all_others_are_is_awaited(odd: RankStack) -> None:
    at_sockets = [replace(rank(number, ()), waits_in="wait_woken") for number in range(3)]
    assert odd_ones([*at_sockets, odd]) == (odd,)
    assert worded([*at_sockets, odd]) == "3 ranks wait at a socket; rank 3 on node2 cannot be read"


def test_a_rank_that_was_seen_before_and_has_given_no_stack_cannot_be_read() -> None:
    lives = [RankLife(f"node{number // 2 + 1}", number, "S", 0.0, 0.0) for number in range(4)]
    stacks = with_unread(others(3, of=4), lives)
    assert worded(list(stacks)) == "3 ranks wait in all_reduce (train.py:88); rank 3 on node2 cannot be read"
    assert with_unread(others(of=4), lives) == tuple(others(of=4))


RECEIVE = (Frame("receive", "/home/u/ring.py", 12), STEP, MAIN)


def at_socket(number: int, waits_in: str = "wait_woken", *called: Frame) -> RankStack:
    return replace(rank(number, (*called, *RECEIVE)), waits_in=waits_in)


@pytest.mark.parametrize(
    "waits",
    [
        at_socket(0),
        at_socket(0, "unix_stream_read_generic"),
        at_socket(0, "inet_csk_accept"),
        at_socket(0, "poll_schedule_timeout.constprop.0"),
        at_socket(0, "do_epoll_wait"),
        at_socket(0, "", Frame("EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468)),
        at_socket(0, "", Frame("Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py", 389)),
    ],
)
@pytest.mark.parametrize(
    "odd",
    [
        rank(3, LOAD, "R", active=True),
        replace(rank(3, LOAD), waits_in="anon_pipe_read"),
        replace(rank(3, LOAD), waits_in="folio_wait_bit"),
        replace(rank(3, SLEEP), waits_in="hrtimer_nanosleep"),
        rank(3, RECEIVE, "T"),
    ],
)
def test_over_plain_sockets_the_one_that_does_not_wait_for_a_peer_is_named(waits: RankStack, odd: RankStack) -> None:
    stacks = [*(replace(waits, rank=number) for number in range(3)), odd]
    assert odd_ones(stacks) == (odd,)
    assert re.match(r"3 ranks wait in [\w.]+ \(ring\.py:12\); rank 3 on node2 is in ", worded(stacks))


def test_if_all_wait_at_sockets_nobody_is_to_blame_wherever_they_stand() -> None:
    assert odd_ones([*(at_socket(number) for number in range(3)), replace(at_socket(3), threads=(LOAD,))]) == ()


def test_one_that_waits_at_a_socket_while_the_others_are_in_a_collective_is_awaited() -> None:
    assert odd_ones([*others(3, of=4), at_socket(3)]) == (at_socket(3),)


def test_who_moves_bytes_or_waits_for_a_child_at_a_socket_does_not_wait_for_a_peer() -> None:
    assert replace(at_socket(0), active=True).doing == "works"
    assert replace(rank(0, DATA_LOADER), waits_in="poll_schedule_timeout").doing == "stuck"


def test_of_rays_processes_the_one_that_is_in_the_users_code_is_awaited() -> None:
    in_ray = f"{SITE}/ray/_private/worker.py"
    driver = RankStack("node1", None, 7, "S", threads=((Frame("get_objects", in_ray, 1055), STEP, MAIN),))
    idle = RankStack("node1", None, 8, "S", threads=((Frame("main_loop", in_ray, 1069),),))
    busy = RankStack("node2", None, 9, "R", active=True, threads=((STEP, Frame("main_loop", in_ray, 1069)),))
    assert odd_ones([driver, idle, busy]) == (busy,)


DATA_LOADER = (
    Frame("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
    Frame("_BaseDataLoaderIter.__next__", f"{SITE}/torch/utils/data/dataloader.py", 725),
    STEP,
    MAIN,
)
OF_WORKER = (
    Frame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 334),
    Frame("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
)


def child(pid: int, frames: tuple[Frame, ...] = OF_WORKER, state: str = "S") -> RankStack:
    return RankStack("node2", None, pid, state, threads=(frames,) if frames else ())


@pytest.mark.parametrize(
    ("children", "remark"),
    [
        ((child(7), child(8, (LOAD[0], *OF_WORKER))), ", its child 8 is in load_batch (data.py:41)"),
        ((child(7, LOAD[:1]), child(8, LOAD[:1], "D")), ", its child 8 is in load_batch (data.py:41), disk sleep"),
        ((child(7), child(8, (), "T")), ", its child 8 is stopped"),
        ((child(7), child(8, ())), ""),
    ],
)
def test_the_child_that_a_rank_waits_for_is_named(children: tuple[RankStack, ...], remark: str) -> None:
    odd = replace(rank(3, DATA_LOADER), children=children)
    assert worded([*others(3, of=4), odd]) == (
        f"3 ranks wait in all_reduce (train.py:88); rank 3 on node2 is in Queue.get (train.py:88){remark}"
    )


def test_a_child_that_a_signal_has_ended_is_named() -> None:
    odd = replace(rank(3, DATA_LOADER), children=(replace(child(8, (), "Z"), signum=9), child(7)))
    assert worded([*others(3, of=4), odd]).endswith("in Queue.get (train.py:88), its child 8 was killed by SIGKILL")


POOL = "/usr/lib/python3.11/multiprocessing/pool.py"
IN_POOL = (Frame("worker", POOL, 114), *OF_WORKER[1:])
IDLE = (Frame("SimpleQueue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 367), *IN_POOL)
OF_POOL = (Frame("ApplyResult.wait", POOL, 768), Frame("ApplyResult.get", POOL, 774), STEP, MAIN)


def test_a_rank_that_waits_for_a_pool_without_a_worker_at_its_task_is_told() -> None:
    waits = replace(rank(3, OF_POOL), children=(child(7, IDLE), child(8, IDLE), child(9, SLEEP)))
    assert worded([*others(3, of=4), waits]).endswith(
        "in ApplyResult.get (train.py:88), all workers of its pool are idle: the one that had the task has ended"
    )
    assert not replace(waits, children=(child(7, IDLE), child(8, (LOAD[0], *IN_POOL)))).waits_for_idle_pool
    assert not replace(waits, children=(child(7, IDLE), child(8, IN_POOL))).waits_for_idle_pool
    assert not replace(waits, children=()).waits_for_idle_pool
    assert not replace(waits, threads=(DATA_LOADER,)).waits_for_idle_pool


def test_a_rank_whose_child_is_held_is_odder_than_one_that_works() -> None:
    held = replace(rank(2, DATA_LOADER), children=(child(7), child(8, LOAD[:1], "D")))
    assert odd_ones([rank(0), rank(1, LOAD, active=True), held]) == (held,)
    waits = replace(rank(2), children=held.children)
    assert odd_ones([rank(0), rank(1, LOAD), waits]) == (rank(1, LOAD),)


def test_the_frames_of_a_fork_begin_where_it_was_forked() -> None:
    forked = (*OF_WORKER, Frame("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 71), STEP, MAIN)
    assert own_frames(forked) == OF_WORKER
    assert own_frames(LOAD) == LOAD


def test_a_rank_is_ending_when_its_program_is_over() -> None:
    shutdown = Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590)
    assert rank(3, (shutdown,)).is_ending
    assert replace(rank(3), threads=((),)).is_ending
    assert not rank(3, (*LOAD, MAIN)).is_ending
    assert not rank(3, ()).is_ending  # its stack could not be read


def test_of_two_ranks_the_one_that_does_not_wait_is_the_odd_one() -> None:
    assert odd_ones([rank(0), rank(1, LOAD)]) == (rank(1, LOAD),)


def test_nobody_is_odd_if_all_stand_at_the_same_place_or_half_here_and_half_there() -> None:
    assert odd_ones([]) == ()
    assert odd_ones(others(of=4)) == ()
    assert odd_ones([rank(0), rank(1), rank(2, BACKWARD), rank(3, BACKWARD)]) == ()
    assert odd_ones([rank(number, state="D") for number in range(4)]) == ()


def test_what_the_kernel_holds_is_odder_than_what_works() -> None:
    held = rank(2, LOAD, "D")
    assert odd_ones([rank(0), rank(1, LOAD, active=True), held]) == (held,)


def test_a_place_in_a_program_without_code_of_the_users_is_the_innermost_call() -> None:
    assert rank(0, BACKWARD[:2]).place == "_engine_run_backward (graph.py:823)"


def test_many_places_are_cut_to_the_largest_and_the_odd_ones() -> None:
    stacks = [rank(0), rank(1), *(rank(number, (Frame("f", "/home/u/a.py", number),)) for number in range(2, 9))]
    assert worded(stacks) == (
        "2 ranks wait in all_reduce (train.py:88); rank 6 on node4 is in f (a.py:6); rank 7 on node4 is in f (a.py:7); "
        "rank 8 on node5 is in f (a.py:8); and 4 more places"
    )
    assert len(groups_of(stacks)) == 8


def test_a_rank_that_works_while_others_wait_has_ten_minutes() -> None:
    stacks = [*others(0, of=4), rank(0, LOAD, "R", active=True)]
    assert not is_hang(Suspicion(599, certain=False), stacks)
    assert is_hang(Suspicion(601, certain=False), stacks)
    assert is_hang(Suspicion(60), stacks)


def test_a_rank_that_waits_while_most_work_does_not_hang() -> None:
    stacks = [rank(0), *(rank(number, LOAD, "R", active=True) for number in range(1, 4))]
    assert not is_hang(Suspicion(10_000, certain=False), stacks)
    assert is_hang(Suspicion(10_000, certain=False), [rank(0, LOAD), *stacks[1:]])


def test_if_nobody_works_it_is_a_hang() -> None:
    assert is_hang(Suspicion(181, certain=False), others(of=4))
    assert is_hang(Suspicion(181, certain=False), [])


def test_the_stacks_that_python_writes_at_a_signal_are_read_the_main_thread_first() -> None:
    text = (
        "Thread 0x00007f (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait\n'
        "\n"
        "Current thread 0x00007e (most recent call first):\n"
        '  File "/home/u/data.py", line 41 in load_batch\n'
        '  File "/home/u/train.py", line 88 in step\n'
    )
    assert parse_faulthandler(text) == (
        (Frame("load_batch", "/home/u/data.py", 41), Frame("step", "/home/u/train.py", 88)),
        (Frame("wait", "/usr/lib/python3.11/threading.py", 320),),
    )
    assert parse_faulthandler("") == ()
