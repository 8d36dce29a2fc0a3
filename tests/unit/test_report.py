"""The report: of a job with a full record, and of one with little."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.node_names import folded, joined, parted, unfolded
from laggard.resilience.record.entries import Told
from laggard.resilience.record.journal import Entry, JournalError
from laggard.resilience.record.timeline import timeline_of_entries
from laggard.resilience.report.costs import costs_of
from laggard.resilience.report.frozen import frozen
from laggard.resilience.report.inputs import ReportInputs, read_inputs
from laggard.resilience.report.page import write_report
from laggard.resilience.text import abbreviated, clock, duration
from laggard.telemetry.course import LaunchProgressed, Progress
from laggard.telemetry.dumps.writing import write_dump
from tests.made_up_job import LENGTH_S, T0, entries, series, write_record


class Page(HTMLParser):
    """What a browser would fetch, and which ids there are."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "data", "action"}:
                self.fetched.append(value or "")
            if name == "id":
                self.ids.append(value or "")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("record"))


@pytest.fixture(scope="module")
def page(record: Path) -> Page:
    return Page(write_report(read_inputs(record), record))


def test_the_page_fetches_nothing_and_its_ids_are_unique(page: Page) -> None:
    assert [name for name in page.fetched if not name.startswith(("#", "data:"))] == []
    assert len(page.ids) == len(set(page.ids))
    assert "connect-src" not in page.text


def test_a_users_names_are_escaped_on_the_page(page: Page) -> None:
    assert "&lt;b&gt;bold &amp; brave&lt;/b&gt;" in page.text
    assert "<b>" not in page.text


def data_of(page: Page) -> Any:
    """Return the data inside a page."""
    found = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', page.text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def drawn_in(curve: Any) -> Any:
    """Return the values of a curve's lines."""
    return np.frombuffer(base64.b64decode(curve["lines"]), "<f4").reshape(len(curve["of"]), -1)


def test_the_page_holds_the_lines_and_the_band_that_it_draws(page: Page) -> None:
    data = data_of(page)
    assert data["about"]["accused"] == [["node2", "0"]]
    assert [launch["excluded"] for launch in data["about"]["launches"]] == [[], ["node2"]]
    curve = data["curves"]["gpu-probe-time"]["[]"]
    assert np.nanmax(drawn_in(curve)[curve["of"].index(["node2", "0"])]) == pytest.approx(0.015, rel=0.05)
    assert max(curve["high"]) < 0.011, "a slow device is not in the band of its peers"
    assert curve["n_series"] == 5


def test_beside_a_spike_the_small_values_of_a_metric_are_what_they_were(tmp_path: Path, record: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes((record / "job.jsonl").read_bytes())
    times_us = np.arange(5, dtype=np.int64) * 120_000_000 + round(T0 * 1e6)
    norms = (np.array([1.0, 4.6e18, 1e300, 2.5, 3.0]), np.array([0.5, 0.25, 0.125, 0.1, 0.2]))
    write_dump(
        str(tmp_path),
        "samples",
        T0 + LENGTH_S,
        [TimeSeries("norm", {"rank": str(rank)}, times_us, of_rank) for rank, of_rank in enumerate(norms)],
    )
    curve = frozen(read_inputs(tmp_path), "")["curves"]["norm"]['["rank"]']
    drawn = [line[np.isfinite(line)] for line in drawn_in(curve)]
    assert drawn[0] == pytest.approx([1.0, 4.6e18, 3.4e38, 2.5, 3.0], rel=1e-3)
    assert drawn[1] == pytest.approx(norms[1])


def test_the_page_says_which_node_was_excluded_and_why(page: Page) -> None:
    for words in (
        "excluded: node2",
        "35 % slower than its 3 peers",
        "thermal throttling",
        "relaunches took 10.0 s",
        "gap before",
    ):
        assert words in page.text


def test_costs_follow_from_verdicts_and_launches(record: Path) -> None:
    inputs = read_inputs(record)
    costs = costs_of(inputs.timeline)
    # From 200 s to 300 s one device took 1.5 times as long: a third of 100 s was waiting.
    assert [parts.slow_s for parts in costs.times.launches] == pytest.approx([33, 0], abs=1)
    assert costs.gap_s == (0, 10)
    # After the relaunch 290 s at full pace; at the slow pace they would have been 435 s; with the gap they were 300 s.
    assert costs.saved_s == pytest.approx(1.5 * 290 - 300)


def test_savings_are_not_stated_for_virtual_devices_and_not_if_they_are_longer_than_the_job(record: Path) -> None:
    timeline = read_inputs(record).timeline
    assert math.isnan(costs_of(timeline, on_gpus=False).saved_s)
    (verdict,) = timeline.verdicts
    slower = replace(timeline, verdicts=(replace(verdict, of=replace(verdict.of, slowdown=4.0)),))
    assert math.isnan(costs_of(slower).saved_s)
    assert not math.isnan(costs_of(timeline).saved_s)


def test_a_job_whose_probes_ran_on_virtual_devices_has_no_savings_in_its_report(tmp_path: Path, record: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes((record / "job.jsonl").read_bytes())
    made = (replace(each, tags={**each.tags, "model": "virtual"}) for each in series())
    write_dump(str(tmp_path), "samples", T0 + LENGTH_S, made)
    assert "saved (at most)" in write_report(read_inputs(record), record).read_text()
    text = write_report(read_inputs(tmp_path), tmp_path).read_text()
    assert "saved (at most)" not in text
    assert "No savings are stated: " in text


def test_the_title_says_how_the_job_ended_and_what_was_lost(record: Path, tmp_path: Path) -> None:
    made = write_report(read_inputs(record), tmp_path).read_text()
    assert "<title>train-abc_1234: exit code 0 after 10 min 0 s</title>" in made
    at = T0 + 250
    told = [
        Entry(at, LaunchProgressed(0, Progress(at - 30, 0, 10.0))),
        Entry(at, LaunchProgressed(0, Progress(at, 0, 20.0))),
        Entry(at + 100, LaunchProgressed(1, Progress(at + 100, 0, 11.0))),
        Entry(at + 110, LaunchProgressed(1, Progress(at + 110, 0, 30.0))),
    ]
    timeline = timeline_of_entries(sorted([*entries(), *told], key=lambda each: each.time_s))
    made = write_report(ReportInputs(timeline), tmp_path).read_text()
    assert re.search(r"<title>train-abc_1234: exit code 0 after 10 min 0 s; [0-9.]+ s of work lost</title>", made)


def test_a_metric_that_is_not_a_time_is_drawn_as_it_is(tmp_path: Path, record: Path) -> None:
    (tmp_path / "job.jsonl").write_bytes((record / "job.jsonl").read_bytes())
    made = (replace(each, metric="bandwidth") for each in series() if each.metric == "gpu-probe-time")
    write_dump(str(tmp_path), "samples", T0 + LENGTH_S, made)
    inputs = read_inputs(tmp_path)
    assert inputs.probes == ("bandwidth",)
    text = write_report(inputs, tmp_path).read_text()
    assert "bandwidth" in text
    assert "bandwidth, ms" not in text


def test_the_job_ends_before_its_report_is_made() -> None:
    last_entry = Entry(T0 + LENGTH_S + 14, Told("report", "/somewhere/report.html"))
    assert timeline_of_entries([*entries(), last_entry]).ended_s == T0 + LENGTH_S


def test_a_job_that_is_running_or_was_killed_has_a_report(tmp_path: Path) -> None:
    write_record(tmp_path, samples=False, ended=False)
    text = write_report(read_inputs(tmp_path), tmp_path).read_text()
    assert "no end recorded" in text
    assert "--telemetry-level=3" in text


def test_a_job_that_never_began_a_launch_has_a_report(tmp_path: Path) -> None:
    write_record(tmp_path, samples=False)
    first = (tmp_path / "job.jsonl").read_text().splitlines()[0]
    (tmp_path / "job.jsonl").write_text(first + "\n")
    assert "0 launches" in write_report(read_inputs(tmp_path), tmp_path).read_text()


def test_a_metric_may_have_one_sample(tmp_path: Path) -> None:
    write_record(tmp_path, samples=False)
    once = TimeSeries("gpu-probe-time", {"host": "a", "gpu": "0"}, np.array([round(T0 * 1e6)]), np.array([1.0]))
    write_dump(str(tmp_path), "all", T0, [once])
    curve = frozen(read_inputs(tmp_path), "")["curves"]["gpu-probe-time"]["[]"]
    assert (curve["middle"], curve["of"]) == ([1.0], [("a", "0")])


@pytest.mark.parametrize(
    ("seconds", "words", "time"),
    [
        (0.04, "0.0 s", "0:00"),
        (99.9, "99.9 s", "1:40"),
        (750, "12 min 30 s", "12:30"),
        (12_000, "3 h 20 min", "3:20:00"),
    ],
)
def test_times_are_formatted_for_people(seconds: float, words: str, time: str) -> None:
    assert (duration(seconds), clock(seconds)) == (words, time)


def test_names_are_abbreviated() -> None:
    assert abbreviated(["a", "b"]) == "a, b"
    assert abbreviated([f"nid{number:05}" for number in range(126)]) == "nid[00000-00125]"
    assert abbreviated([f"n{number}" for number in (*range(4), 6, *range(8, 1000))]) == "n[0-3,6,8-999]"
    assert abbreviated([f"{letter}-node" for letter in "abcdefgh"]) == "a-node, b-node, c-node, d-node, … (8 in all)"


HOSTS = st.from_regex(r"[a-z]{0,2}[0-9]{0,3}(-[a-z]{1,2}[0-9]{0,2})?", fullmatch=True)


@given(st.lists(HOSTS, max_size=30))
def test_folded_names_stand_for_the_same_names(names: list[str]) -> None:
    assert sorted(name for part in folded(names) for name in unfolded(part)) == sorted(set(names))


@given(st.lists(HOSTS.filter(bool), max_size=30, unique=True))
def test_a_dump_gives_back_the_nodes_of_a_launch_and_which_was_first(names: list[str]) -> None:
    again = parted(joined(names))
    assert again[:1] == names[:1]
    assert sorted(again) == sorted(names)
    hundreds = [f"nid{number:05}" for number in range(126)]
    assert joined(hundreds) == "nid00000, nid[00001-00125]"


ARBITRARY = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=3)


@given(data=st.data())
def test_a_journal_with_anything_in_it_is_a_timeline_or_refused(data: st.DataObject) -> None:
    found = [json.loads(entry.to_json()) for entry in entries()]
    entry = data.draw(st.sampled_from(found))
    entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(ARBITRARY)
    with contextlib.suppress(ValueError):
        timeline = timeline_of_entries([Entry.from_json(json.dumps(each)) for each in found])
        costs_of(timeline)
        assert all(isinstance(host, str) for host in timeline.hosts)


@pytest.mark.parametrize("field", ["nodes", "command", "name"])
def test_a_journal_that_lacks_something_is_named(tmp_path: Path, field: str) -> None:
    write_record(tmp_path, samples=False)
    journal = tmp_path / "job.jsonl"
    first, *rest = journal.read_text().splitlines()
    without = {name: value for name, value in json.loads(first).items() if name != field}
    journal.write_text("\n".join([json.dumps(without), *rest, ""]))
    with pytest.raises(JournalError, match=f"{journal} is damaged: line 1 is not a journal entry: .*lacks '{field}'"):
        read_inputs(tmp_path)
