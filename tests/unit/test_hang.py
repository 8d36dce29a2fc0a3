"""When a program counts as hung."""

from __future__ import annotations

import json

import pytest

from laggard.records import plain, record_of
from laggard.resilience.decision.hang import Counters, HangTimeout, HangWatch, LifeWatch, RankLife, Silent, Suspicion


def first_hang_s(timeout: HangTimeout, signs_s: list[float], until_s: int) -> float | None:
    """Check a program with signs of life at these moments every second; return when it counted as hung."""
    watch = HangWatch(timeout, 0, 0.0)
    for now_s in range(1, until_s):
        if watch.check(sum(moment <= now_s for moment in signs_s), [], now_s) is not None:
            return now_s
    return None


def test_a_program_may_be_silent_for_its_timeout_and_not_longer() -> None:
    assert first_hang_s(30.0, [10, 20], 1000) == 51
    assert first_hang_s(30.0, [], 1000) == 31
    assert first_hang_s(30.0, list(range(0, 1000, 30)), 1000) is None


def test_the_derived_timeout_is_a_minute_for_quick_steps() -> None:
    assert first_hang_s("auto", [100, 101, 102, 103, 104], 1000) == 165


def test_the_derived_timeout_is_ten_times_the_longest_silence_and_starting_does_not_count() -> None:
    assert first_hang_s("auto", [500, 520, 530, 540, 550], 2000) == 751


def test_the_derived_timeout_needs_five_signs() -> None:
    assert first_hang_s("auto", [1, 2, 3, 4], 100_000) is None


def test_a_program_left_hanging_is_reported_again_when_its_silence_has_doubled() -> None:
    watch = HangWatch(10.0, 0, 0.0)
    assert [now_s for now_s in range(50) if watch.check(0, [], now_s) is not None] == [11, 22, 44]


def life(rank: int | None = 0, silent_s: float = 0.0, longest_s: float = 0.0, state: str = "S") -> RankLife:
    return RankLife("node2", rank, state, silent_s, longest_s)


def suspicion(timeout: HangTimeout, *ranks: RankLife, signs: int = 0, now_s: float = 5000.0) -> Suspicion | None:
    watch = HangWatch(timeout, 0, 0.0)
    for sign in range(1, signs + 1):
        watch.check(sign, [life(silent_s=0.0)], 4000.0 + sign)
    return watch.check(signs, ranks, now_s)


def test_a_program_without_signs_of_its_own_is_judged_by_its_ranks() -> None:
    assert suspicion(30.0, life(silent_s=30), life(1, silent_s=2)) is None
    assert suspicion(30.0, life(silent_s=30), life(1, silent_s=30)) is None
    assert suspicion(30.0, life(silent_s=31), life(1, silent_s=2)) == Suspicion(31, Silent("node2", 0))
    assert suspicion(30.0, life(silent_s=31), life(1, silent_s=32)) == Suspicion(31, Silent())


def test_a_rank_that_is_silent_while_others_commit_is_suspected_after_ten_minutes_but_not_sentenced() -> None:
    assert suspicion(30.0, life(silent_s=600), life(1), signs=2, now_s=4003) is None
    silent = suspicion(30.0, life(silent_s=601), life(1), signs=2, now_s=4003)
    assert silent == Suspicion(601, Silent("node2", 0), certain=False)


def test_ranks_that_do_little_while_the_program_gives_signs_of_its_own_are_let_be() -> None:
    assert suspicion(30.0, life(silent_s=599), life(1, silent_s=599), signs=2, now_s=4003) is None
    assert suspicion("auto", life(None, silent_s=5000), signs=2, now_s=4003) is None


def test_a_rank_that_is_stopped_while_others_commit_is_sentenced_at_once() -> None:
    stopped = suspicion(30.0, life(silent_s=31, state="T"), life(1), signs=2, now_s=4003)
    assert stopped == Suspicion(31, Silent("node2", 0))


@pytest.mark.parametrize(
    ("ranks", "silent"),
    [
        ([life(silent_s=180), life(1, silent_s=180)], None),
        ([life(silent_s=181), life(1, silent_s=182)], Silent()),
        ([life(silent_s=600), life(1)], None),
        ([life(silent_s=601), life(1)], Silent("node2", 0)),
        ([life(silent_s=610, longest_s=61), life(1)], None),
        ([life(silent_s=611, longest_s=61), life(1)], Silent("node2", 0)),
        ([life(None, silent_s=601), life(None)], None),  # a worker may well be idle
        ([life(silent_s=60, state="T"), life(1)], None),
        ([life(silent_s=61, state="T"), life(1)], Silent("node2", 0)),
        ([life(None, silent_s=61, state="T"), life(None)], Silent("node2")),
    ],
)
def test_the_derived_timeout_of_ranks_has_a_least_and_grows_with_their_own_past(
    ranks: list[RankLife], silent: Silent | None
) -> None:
    found = suspicion("auto", *ranks)
    assert (found.silent if found else None) == silent


def test_silence_of_all_ranks_together_is_compared_with_the_longest_before() -> None:
    watch = HangWatch("auto", 0, 0.0)
    for now_s in range(0, 100, 2):  # a phase in which nothing moves
        assert watch.check(0, [life(silent_s=now_s), life(1, silent_s=now_s)], now_s) is None
    assert watch.check(0, [life(), life(1)], 100) is None
    assert watch.check(0, [life(None, silent_s=900), life(None, silent_s=900)], 1000) is None
    assert watch.check(0, [life(None, silent_s=981), life(None, silent_s=981)], 1081) is not None


def test_a_node_that_reports_the_same_silence_twice_has_not_ended_it() -> None:
    watch = HangWatch("auto", 0, 0.0)
    for now_s in (100, 101):
        assert watch.check(0, [life(silent_s=100), life(1, silent_s=100)], now_s) is None
    assert watch.check(0, [life(silent_s=181), life(1, silent_s=181)], 182) is not None


@pytest.mark.parametrize("signs", [1, 2])
@pytest.mark.parametrize(("after_s", "silent"), [(60, None), (61, Silent())])
def test_until_its_timeout_is_derived_a_sign_of_the_programs_own_counts_for_a_minute(
    signs: int, after_s: float, silent: Silent | None
) -> None:
    found = suspicion("auto", life(silent_s=200), life(1, silent_s=200), signs=signs, now_s=4000 + signs + after_s)
    assert (found.silent if found else None) == silent


@pytest.mark.parametrize(("silent_s", "is_suspected"), [(1000, False), (1001, True)])
def test_a_rank_of_a_program_that_gives_signs_may_be_silent_for_a_timeout_above_ten_minutes(
    silent_s: float, *, is_suspected: bool
) -> None:
    assert (suspicion(1000.0, life(silent_s=silent_s), life(1), signs=2, now_s=4003) is not None) == is_suspected


def watched(*looks: tuple[float, Counters]) -> LifeWatch:
    watch = LifeWatch(Counters(0.0, 0), 0.0)
    for now_s, counters in looks:
        watch.look(counters, now_s)
    return watch


def test_a_rank_is_silent_while_it_neither_uses_a_processor_nor_moves_bytes() -> None:
    watch = watched((2.0, Counters(1.0, 10)))
    assert watch.look(Counters(1.01, 10), 4.0) == 2.0  # what a thread that watches a connection takes
    assert watch.look(Counters(1.02, 10), 6.0) == 4.0
    assert watch.look(Counters(1.02, 11), 8.0) == 0.0
    assert watch.longest_s == 4.0
    assert watch.look(Counters(1.02, 11, children_bytes=5000), 10.0) == 2.0
    assert watch.look(Counters(1.02, 11, children_bytes=15000), 12.0) == 0.0
    assert watch.look(Counters(1.1, 11, children_bytes=15000), 14.0) == 0.0


@pytest.mark.parametrize(
    ("cpu_s", "children_bytes", "is_silent"),
    [(0.999, 0, True), (1.0, 0, False), (0.0, 204_799, True), (0.0, 204_800, False)],  # 2 %, and 4 KiB a second
)
def test_what_only_waits_is_silent(cpu_s: float, children_bytes: int, is_silent: bool) -> None:
    watch = LifeWatch(Counters(100.0, 0, 10**9), 0.0)
    assert watch.look(Counters(100.0 + cpu_s, 0, 10**9 + children_bytes), 50.0) == (50.0 if is_silent else 0.0)


def test_a_rank_that_had_no_descendants_is_not_silent_once_those_it_has_move_enough_bytes() -> None:
    assert watched().look(Counters(0.0, 0, children_bytes=8192), 2.0) == 0.0


def test_a_rank_that_was_never_silent_has_no_longest_silence() -> None:
    assert watched((2.0, Counters(1.0, 0)), (4.0, Counters(2.0, 0))).longest_s == 0.0


def test_a_node_stores_how_its_ranks_look() -> None:
    for each in (life(3, 1.5, 2.5), life(None, 1.5, 2.5)):
        assert record_of(RankLife, json.loads(json.dumps(plain(each)))) == each


def test_of_several_ranks_the_most_silent_one_is_suspected() -> None:
    assert suspicion("auto", life(0, 700), life(1, 900), life(2, 800), life(3)) == Suspicion(
        900, Silent("node2", 1), certain=False
    )


def test_a_program_that_has_given_no_sign_yet_is_judged_by_its_ranks() -> None:
    watch = HangWatch(30.0, 0, 0.0)
    assert watch.check(0, [life(silent_s=31), life(1)], 25.0) == Suspicion(31, Silent("node2", 0))


def test_a_program_without_ranks_is_watched_by_its_own_signs_from_the_first_one_on() -> None:
    watch = HangWatch(30.0, 0, 0.0)
    assert watch.check(0, [life()], 1.0) is None
    assert watch.check(0, [], 1000.0) is None  # it may never give a sign of its own
    assert watch.check(1, [], 1001.0) is None
    assert watch.check(1, [], 1031.0) is None
    assert watch.check(1, [], 1031.1) is not None


def test_a_program_without_ranks_that_wakes_up_now_and_then_is_not_silent() -> None:
    watch = watched()
    assert watch.look(Counters(0.0, 0, wake_ups=1), 2.0) == 0.0
    assert watch.look(Counters(0.0, 0, wake_ups=1), 4.0) == 2.0


def test_where_there_is_a_gpu_its_memory_says_whether_a_rank_does_anything() -> None:
    watch = watched()
    assert watch.look(Counters(2.0, 0), 2.0, device_active=False) == 2.0  # it spins while it waits
    assert watch.look(Counters(4.0, 0), 4.0, device_active=True) == 0.0
    assert watch.look(Counters(6.0, 1), 6.0, device_active=False) == 0.0
