"""What a site remembers of its nodes."""

from __future__ import annotations

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.command.nodes import nodes
from laggard.resilience.controller.site_memory import SiteMemory
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.site import Sighting, standings
from laggard.resilience.errors import UsageError
from laggard.resilience.record.history_folder import HistoryFolder
from laggard.resilience.record.node_history import NodeHistory

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


def failed(job: str, days_ago: float = 1.0, host: str = "bad") -> Sighting:
    return Sighting(host, NOW_S - days_ago * DAY_S, "failed", job, "it fell off the bus")


def ran(days: float, days_ago: float = 1.0, host: str = "bad") -> Sighting:
    return Sighting(host, NOW_S - days_ago * DAY_S, "ran", "other", hours=24 * days)


@pytest.mark.parametrize(
    ("noted", "is_suspect"),
    [
        ([failed("a")], False),
        ([failed("a"), failed("b")], True),
        ([failed("a"), failed("a")], False),  # one job counts once
        ([failed("a"), failed("b"), ran(13)], False),  # what ran well speaks for it
        ([failed("a"), failed("b"), failed("c"), ran(13)], True),
        ([failed("a", 29), failed("b", 29)], False),  # four weeks are over
        ([failed("a", -1), failed("b", -1)], False),  # of the future
        ([failed("a"), failed("b"), Sighting("bad", NOW_S, "cleared")], False),
        ([failed("a", 3), Sighting("bad", NOW_S - 2 * DAY_S, "cleared"), failed("b"), failed("c")], True),
        ([Sighting("bad", NOW_S, "pinned"), ran(20)], True),
        ([failed("a"), failed("b", host="other")], False),
    ],
)
def test_a_node_that_several_jobs_had_to_leave_is_a_suspect(noted: list[Sighting], *, is_suspect: bool) -> None:
    found = {each.host: each for each in standings(noted, NOW_S)}
    assert ("bad" in found and found["bad"].is_suspect) == is_suspect


@given(st.lists(st.builds(failed, st.sampled_from("abcd"), st.floats(0, 27)), max_size=6), st.floats(0, 28))
def test_failures_speak_against_a_node_and_use_for_it(noted: list[Sighting], days: float) -> None:
    def odds(*more: Sighting) -> float:
        return standings([*noted, failed("e"), *more], NOW_S)[0].odds

    assert odds(failed("new")) >= odds() >= odds(ran(days))


def history_of(folder: Path) -> NodeHistory:
    return NodeHistory(HistoryFolder(folder, lambda: NOW_S))


def test_a_job_adds_what_it_found_and_the_next_one_uses_such_a_node_last(tmp_path: Path) -> None:
    told: list[str] = []
    hosts = ("n1", "n2", "n3")
    for number in range(2):
        job = SiteMemory(history_of(tmp_path), f"train-{number}", partial(float, NOW_S + number))
        assert job.suspects(hosts, told.append) == []
        before = Roster(("n1", "n2"), ("n3",), (Exclusion("n9", 0.0),))
        job.follow(Roster((), primary="n1"), before, "")
        job.follow(before, before.without(frozenset({"n2"}), 2, NOW_S), "without n2: too slow")
        job.close()

    history = history_of(tmp_path)
    last = SiteMemory(history, "train-2", lambda: NOW_S + 2)

    assert last.suspects(hosts, told.append) == ["n2"]
    assert len(told) == 1
    assert "n2 is used last" in told[0]
    assert "train-1: without n2: too slow" in told[0]
    assert {each.host for each in history.read() if each.kind == "ran"} == {"n1", "n3"}


def test_a_job_without_a_memory_and_one_whose_folder_is_gone_go_on(tmp_path: Path) -> None:
    without = SiteMemory(None, "train", lambda: NOW_S)
    assert without.suspects(["n1"], pytest.fail) == []
    without.note("n1", "slow")
    without.close()
    assert without.remarks == {"n1": "slow"}
    gone = SiteMemory(history_of(tmp_path / "gone"), "train", lambda: NOW_S)
    gone.note("n1", "slow")
    assert gone.trouble == "nothing can be added to --node-history: No such file or directory"


def test_the_operators_of_a_machine_hear_what_is_noted_of_it_and_nothing_of_virtual_nodes() -> None:
    heard: list[tuple[str, str]] = []
    job = SiteMemory(
        None, "train", lambda: NOW_S, {"n1": "gke-7", "n2": ""}.__getitem__, lambda *each: heard.append(each)
    )
    for host in ("n1", "n2"):
        job.note(host, "slow")
    assert heard == [("gke-7", "train: slow")]


def test_what_is_not_valid_does_not_count_and_nothing_is_followed_out_of_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "history", tmp_path / "elsewhere.jsonl"
    folder.mkdir()
    good = json.dumps({"host": "n1", "time_s": NOW_S, "kind": "ran", "hours": 1e9})
    elsewhere.write_text(good)
    (folder / "link.jsonl").symlink_to(elsewhere)
    (folder / "job.jsonl").write_text(
        "\n".join(["{", "[]", "[" * 100_000, '{"host": 3}', "null", good, "\udcff" * 3]), errors="replace"
    )
    (folder / "notes.txt").write_text(good)

    (found,) = history_of(folder).read()

    assert (found.host, found.hours) == ("n1", 28 * 24)


def test_of_a_large_file_only_a_part_is_read(tmp_path: Path) -> None:
    line = json.dumps({"host": "n1", "time_s": NOW_S, "kind": "failed", "why": "x" * 10_000}) + "\n"
    (tmp_path / "job.jsonl").write_text(line * 1000)
    found = history_of(tmp_path).read()
    assert 0 < len(found) < 30
    assert {len(each.why) for each in found} == {300}


def test_files_of_four_weeks_ago_are_removed(tmp_path: Path) -> None:
    for name, days in (("old", 29), ("new", 27)):
        path = tmp_path / f"{name}.jsonl"
        path.touch()
        os.utime(path, (NOW_S - days * DAY_S,) * 2)
    assert history_of(tmp_path).read() == []
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


@pytest.mark.root("to own files as other users do")
@pytest.mark.parametrize(("mode", "counts"), [(0o755, False), (0o775, True), (0o1777, False)])
def test_files_of_other_users_count_only_where_the_folder_is_open_to_a_group(
    tmp_path: Path, mode: int, *, counts: bool
) -> None:
    history = history_of(tmp_path)
    history.add("own", failed("a"))
    history.add("other", failed("b"), Sighting("bad", NOW_S, "pinned"), Sighting("bad", NOW_S, "cleared"))
    os.chown(tmp_path / "other.jsonl", 4321, -1)
    tmp_path.chmod(mode)
    assert {each.job for each in history.read() if each.kind == "failed"} == ({"a", "b"} if counts else {"a"})
    assert not [each for each in history.read() if each.kind in ("pinned", "cleared")]


def test_an_operator_sees_pins_and_clears(tmp_path: Path) -> None:
    def typed(*arguments: str) -> str:
        done = CliRunner().invoke(nodes, [f"--node-history={tmp_path}", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert "nothing speaks against any node" in typed()
    assert "n1" in typed("--pin=n1", "--why=fan")
    (found,) = json.loads(typed("--json"))
    assert (found["host"], found["suspect"], found["chance"]) == ("n1", True, 1.0)
    assert "nothing speaks against any node" in typed("--clear=n1")


@pytest.mark.root("to be another user")
def test_who_is_no_operator_is_told_so() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        os.seteuid(4321)
        try:
            with pytest.raises(UsageError, match="are for the folder's owner and root"):
                CliRunner().invoke(nodes, [f"--node-history={folder}", "--pin=n1"], catch_exceptions=False)
        finally:
            os.seteuid(0)
