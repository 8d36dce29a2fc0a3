"""What is kept of a job: the journal, thinned samples, and where records lie."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.record.journal import JOURNAL_FILE, Journal, JournalError, read_journal
from resilience.record.places import KEPT_JOBS, make_record, records, state_home
from resilience.record.thinning import Thinned
from tests.made_up_job import entries

JOB = next(entries())


def test_what_is_written_is_read_back_and_is_private(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("job", **{name: value for name, value in JOB.items() if name not in {"time_s", "event"}})
    journal.write("told", what="state", text="here\nand there")

    first, second = read_journal(tmp_path / JOURNAL_FILE)

    assert (first.event, first.fields["name"]) == ("job", "train")
    assert second.fields == {"what": "state", "text": "here\nand there"}
    assert (tmp_path / JOURNAL_FILE).stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_text(json.dumps(JOB) + '\n{"time_s": 1, "ev')
    assert [entry.event for entry in read_journal(path)] == ["job"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(JOB | {"format": 2}) + "\n", "format 2 .* reads 1: use the version that wrote it"),
        ("", "no journal of a job"),
        ("half a li", "no journal of a job"),
        ('{"time_s": 1, "event": "told"}\n', "its first entry is not 'job'"),
        (json.dumps(JOB) + "\n[1]\n", "line 2 is no entry"),
        (json.dumps(JOB) + "\n{]\n", "line 2 is no entry"),
    ],
)
def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_text(text)
    with pytest.raises(JournalError, match=message) as error:
        read_journal(path)
    assert str(path) in str(error.value)


def test_a_journal_that_cannot_be_written_is_given_up_with_a_word(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "missing")
    journal.write("told", what="state", text="here")
    journal.write("told", what="state", text="again")
    assert journal.trouble is not None
    assert str(tmp_path / "missing") in journal.trouble


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 100, width=32)), min_size=1, max_size=200),
    st.integers(1, 20),
)
def test_thinned_to_any_width_the_mean_of_all_is_kept(samples: list[tuple[int, float]], batch: int) -> None:
    thinned = Thinned(0, piece_s=1.0, n_pieces=8)
    ordered = sorted(samples)
    for begin in range(0, len(ordered), batch):
        part = ordered[begin : begin + batch]
        times_us = np.array([seconds * 1_000_000 for seconds, _ in part], dtype=np.int64)
        thinned.add("power", {"host": "node1"}, times_us, np.array([value for _, value in part]))

    (series,) = thinned.series()

    pieces = [int(seconds * 1_000_000 // thinned.piece_us) for seconds, _ in samples]
    weights = [pieces.count(int(time_us // thinned.piece_us)) for time_us in series.times_us.tolist()]
    assert len(series.times_us) <= 8
    assert sum(weights) == len(samples)
    expected = np.mean([value for _, value in samples])
    assert np.average(series.values, weights=weights) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_what_is_not_a_number_or_too_many_series_is_left_out() -> None:
    thinned = Thinned(0, max_series=1)
    once = np.array([1_000_000])
    thinned.add("power", {"host": "node1"}, once, np.array([np.nan]))
    thinned.add("power", {"host": "node2"}, once, np.array([5.0]))
    thinned.add("power", {"host": "node3"}, once, np.array([6.0]))
    assert [series.tags["host"] for series in thinned.series()] == ["node2"]


def test_the_users_folder_keeps_the_newest_jobs_and_another_folder_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number in range(KEPT_JOBS + 3):
        for parent in (None, tmp_path / "mine"):
            folder = make_record(f"job-{number:08}", parent)
            (folder / JOURNAL_FILE).touch()
            os.utime(folder, (number, number))

    assert [folder.name for folder in records(state_home())][:2] == ["job-00000022", "job-00000021"]
    assert len(records(state_home())) == KEPT_JOBS + 1  # the newest was made after the last look
    assert len(records(tmp_path / "mine")) == KEPT_JOBS + 3
    assert folder.stat().st_mode & 0o077 == 0


def test_a_relative_folder_for_state_is_passed_over() -> None:
    assert state_home({"XDG_STATE_HOME": "here"}) == Path.home() / ".local" / "state" / "laggard"
