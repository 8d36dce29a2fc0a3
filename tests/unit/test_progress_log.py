"""How far a launch has come is recorded often enough, with the time at which it was seen, and not too often."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from laggard.resilience.record.entries import Record
from laggard.resilience.record.progress_log import MAX_INTERVAL_S, ProgressLog
from laggard.telemetry.course import LaunchProgressed


class Notes:
    """A journal and a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.entries: list[LaunchProgressed] = []
        self.log = ProgressLog(self.take, lambda: self.now_s)

    def take(self, entry: Record) -> None:
        assert isinstance(entry, LaunchProgressed)
        self.entries.append(entry)

    def see(self, at_s: float, launch: int, commits: int, step: str | None = None) -> None:
        self.now_s = at_s
        self.log.see(launch, commits, step)

    @property
    def seen(self) -> list[tuple[Any, ...]]:
        return [(each.launch, each.progress.commits, each.progress.step, each.progress.time_s) for each in self.entries]


def test_the_start_and_the_first_progress_of_a_launch_are_recorded_at_once() -> None:
    notes = Notes()
    notes.see(10, 0, 5)
    notes.see(10.5, 0, 5, "1.0")
    assert notes.seen == [(0, 5, None, 10), (0, 5, 1.0, 10.5)]


def test_the_last_change_before_a_hang_is_recorded_with_its_own_time() -> None:
    notes = Notes()
    for tenth in range(10_000):
        notes.see(tenth / 10, 0, tenth // 3)
    for second in range(1000, 1100):
        notes.see(second, 0, 3333)
    assert notes.seen[-1] == (0, 3333, None, 999.9)


def test_what_was_held_back_is_recorded_when_the_next_launch_begins_or_the_job_ends() -> None:
    notes = Notes()
    notes.see(0, 0, 0)
    notes.see(1, 0, 1)
    notes.see(1.5, 0, 2)
    notes.see(9, 1, 2)
    assert notes.seen[2:] == [(0, 2, None, 1.5), (1, 2, None, 9)]
    notes.see(10, 1, 3)
    notes.see(10.5, 1, 4)
    notes.log.close()
    notes.log.close()
    assert notes.seen[4:] == [(1, 3, None, 10), (1, 4, None, 10.5)]


def test_signs_of_a_launch_that_is_over_are_ignored() -> None:
    notes = Notes()
    notes.see(0, 3, 0)
    notes.see(1, 2, 7)
    assert notes.seen == [(3, 0, None, 0)]


def test_a_week_has_few_entries_and_none_is_out_of_date_for_long() -> None:
    notes = Notes()
    for second in range(7 * 86_400):
        notes.see(second, 0, second)
    assert len(notes.entries) < 2500
    times = [each.progress.time_s for each in notes.entries]
    assert max(after - before for before, after in pairwise(times)) <= MAX_INTERVAL_S


def test_a_step_that_is_no_number_is_recorded_as_none() -> None:
    notes = Notes()
    notes.see(0, 0, 1, "nan")
    assert notes.seen == [(0, 1, None, 0)]
