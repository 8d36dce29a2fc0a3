"""The record of a job: the journal, the downsampled telemetry, and the folder of all records."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.errors import LaggardError
from laggard.resilience.command.past_checks import PastReadingsError
from laggard.resilience.record.downsampler import Downsampler
from laggard.resilience.record.entries import Told
from laggard.resilience.record.job_record import KEPT_JOBS, make_record, records
from laggard.resilience.record.journal import JOURNAL_FILE, Entry, Journal, JournalError, read_journal
from laggard.system.user import state_home, user_name
from tests.made_up_job import entries

JOB = next(entries())


def test_entries_are_read_back_and_the_file_is_private(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(JOB.record)
    journal.write(Told("state", "here\nand there"))

    first, second = read_journal(tmp_path / JOURNAL_FILE)

    assert first.record == JOB.record
    assert second.record == Told("state", "here and there"), "a control character steers no terminal"
    assert (tmp_path / JOURNAL_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_the_times_of_a_journal_go_on_evenly_when_the_clock_is_set(
    step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    journal.write(JOB.record)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    journal.write(Told("state", "here"))
    first, second = read_journal(tmp_path / JOURNAL_FILE)
    assert 0.0 <= second.time_s - first.time_s < 3600.0


def test_a_line_cut_short_by_a_kill_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_text(JOB.to_json() + '\n{"time_s": 1, "ev')
    assert read_journal(path) == [JOB]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            json.dumps(json.loads(JOB.to_json()) | {"format": 2}) + "\n",
            "format 2, .* reads 1: use the version that wrote it",
        ),
        ("", "not the journal of a job"),
        ("half a li", "not the journal of a job"),
        (Entry(1.0, Told("state", "here")).to_json() + "\n", "its first entry is not its beginning"),
        (JOB.to_json() + "\n[1]\n", "line 2 is not a journal entry"),
        (JOB.to_json() + "\n{]\n", "line 2 is not a journal entry"),
        (JOB.to_json() + '\n{"time_s": 1, "is": "Told", "what": "state"}\n', "line 2 .*: Told lacks 'text'"),
        (
            JOB.to_json() + '\n{"time_s": 1, "is": "JobEnded", "exit_code": "0"}\n',
            "line 2 .*: JobEnded.exit_code must be of type int, not str",
        ),
        (JOB.to_json() + '\n{"time_s": 1, "is": "Rain"}\n', "line 2 .*: there is no entry 'Rain'"),
        (
            JOB.to_json() + '\n{"time_s": 1e12, "is": "JobEnded", "exit_code": 0}\n',
            "line 2 .*: its time is 1000000000000.0",
        ),
    ],
)
def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_text(text)
    with pytest.raises(JournalError, match=message) as error:
        read_journal(path)
    assert error.value.path == path
    assert str(error.value) == f"{path} {error.value.reason}"


@pytest.mark.parametrize(
    "error",
    [JournalError(Path("job.jsonl"), "is damaged"), PastReadingsError(Path("devices.json"), "KeyError: 'x'")],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_values(error: JournalError | PastReadingsError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert (copy.path, copy.reason, str(copy)) == (error.path, error.reason, str(error))
    assert isinstance(copy, LaggardError)
    assert isinstance(copy, ValueError)


def test_a_journal_that_cannot_be_written_is_given_up_with_a_message(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "missing")
    journal.write(Told("state", "here"))
    journal.write(Told("state", "again"))
    assert journal.trouble is not None
    assert str(tmp_path / "missing") in journal.trouble


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 100, width=32)), min_size=1, max_size=200),
    st.integers(1, 20),
)
def test_downsampling_to_any_width_keeps_the_mean_of_all_samples(samples: list[tuple[int, float]], batch: int) -> None:
    downsampler = Downsampler(0, bin_s=1.0, n_bins=8)
    ordered = sorted(samples)
    for begin in range(0, len(ordered), batch):
        part = ordered[begin : begin + batch]
        times_us = np.array([seconds * 1_000_000 for seconds, _ in part], dtype=np.int64)
        downsampler.add("power", {"host": "node1"}, times_us, np.array([value for _, value in part]))

    (series,) = downsampler.series()

    bins = [int(seconds * 1_000_000 // downsampler.bin_us) for seconds, _ in samples]
    weights = [bins.count(int(time_us // downsampler.bin_us)) for time_us in series.times_us.tolist()]
    assert len(series.times_us) <= 8
    assert sum(weights) == len(samples)
    expected = np.mean([value for _, value in samples])
    assert np.average(series.values, weights=weights) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("times_s", "fold", "points"),
    [
        ([9.9, 10.0, 10.9, 11.0], np.add, [(10.5, 1.5), (11.5, 3.0)]),  # of before the start nothing is kept
        ([10.0, 10.1, 10.2, 13.9], np.minimum, [(10.5, 0.0), (13.5, 3.0)]),
        ([10.0, 10.1, 10.2, 13.9], np.maximum, [(10.5, 2.0), (13.5, 3.0)]),
        ([10.0, 11.0, 12.0, 14.0], np.add, [(11.0, 0.5), (13.0, 2.0), (15.0, 3.0)]),  # bins are twice as wide
        ([10.0, 11.0, 12.0, 14.0], np.maximum, [(11.0, 1.0), (13.0, 2.0), (15.0, 3.0)]),
        ([10.0, 11.0, 12.0, 18.0], np.add, [(12.0, 1.0), (20.0, 3.0)]),
    ],
)
def test_each_bin_has_a_point_in_its_middle_and_bins_become_wider_when_they_are_used_up(
    times_s: list[float], fold: np.ufunc, points: list[tuple[float, float]]
) -> None:
    downsampler = Downsampler(10_000_000, bin_s=1.0, n_bins=4)
    times_us = np.array([round(at * 1_000_000) for at in times_s])
    for at in range(len(times_us)):
        downsampler.add("m", {}, times_us[at : at + 1], np.array([float(at)]), fold)
    (series,) = downsampler.series()
    assert list(zip((series.times_us / 1e6).tolist(), series.values.tolist(), strict=True)) == points


def test_values_that_are_not_numbers_and_surplus_series_are_dropped() -> None:
    downsampler = Downsampler(0, max_series=1)
    once = np.array([1_000_000])
    downsampler.add("power", {"host": "node1"}, once, np.array([np.nan]))
    downsampler.add("power", {"host": "node2"}, once, np.array([5.0]))
    downsampler.add("power", {"host": "node3"}, once, np.array([6.0]))
    assert [series.tags["host"] for series in downsampler.series()] == ["node2"]


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


def test_a_relative_state_home_is_ignored() -> None:
    assert state_home({"XDG_STATE_HOME": "here"}) == Path.home() / ".local" / "state" / "laggard"


def test_a_user_without_a_name_and_a_home_has_those_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert state_home({}) == Path("/.local/state/laggard")
    assert user_name() == str(os.getuid())
