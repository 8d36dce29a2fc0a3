"""What the views show, as pure functions: order, columns, keys, and that it fits any terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from kvstore.endpoint import Endpoint
from resilience.options import UsageError
from resilience.record.journal import Entry
from resilience.record.story import Line, story_of_entries
from resilience.record.words import printable
from resilience.views.discovery import RunningJob, choose
from resilience.views.keys import keys_of
from resilience.views.screen import KEYS, Page, View, rows_of, whole_screen
from resilience.views.snapshot import Readings, Snapshot, compose
from resilience.views.tables import SORTS, sorted_devices
from resilience.views.top import pressed, within
from tests.made_up_job import T0, entries

ROOM = 20


def snapshot_of(n_nodes: int = 3, n_gpus: int = 2, *, level: int = 3) -> Snapshot:
    story = story_of_entries(
        [Entry(fields.pop("time_s"), fields.pop("event"), fields) for fields in entries(n_nodes, n_gpus, ended=False)]
    )
    devices = [(f"node{node + 1}", str(gpu)) for node in range(n_nodes) for gpu in range(n_gpus)]
    readings = Readings(
        devices={device: {"DeviceUtilization": 90.0, "DevicePowerUsage": 300.0} for device in devices},
        nodes={host: {"load_average": 1.0} for host, _ in devices},
        probes={device: [0.01, 0.012 if device == ("node3", "1") else 0.01] for device in devices},
        utilization={device: [0.0, 90.0] for device in devices},
        metrics={"loss": [1.0, 3.0]},
    )
    return compose(story, readings if level else replace(readings, devices={}), T0 + 400, level=level, port=4242)


def printed(snapshot: Snapshot, view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(whole_screen(snapshot, view, width, height))
    return capture.get().splitlines()


def test_each_node_has_its_role_and_each_device_its_peers() -> None:
    snapshot = snapshot_of()
    assert {node.host: node.role for node in snapshot.nodes} == {
        "node1": "primary",
        "node2": "left out",
        "node3": "in use",
    }
    against = {device.name: device.against_peers for device in snapshot.devices}
    assert against["node3 gpu 1"] == pytest.approx(1.2)
    assert against["node1 gpu 0"] == 1
    assert against["node2 gpu 0"] is None  # it is nobody's peer any more


def test_before_the_first_launch_every_node_waits() -> None:
    job = next(entries())
    story = story_of_entries([Entry(job.pop("time_s"), job.pop("event"), job)])
    snapshot = compose(story, Readings({}, {}, {}, {}, {}), T0 + 1, level=0, port=0)
    assert {node.role for node in snapshot.nodes} == {"waiting"}


def test_the_worst_come_first_and_what_was_not_measured_last() -> None:
    snapshot = snapshot_of()
    assert [device.name for device in sorted_devices(snapshot.devices, "worst")][:1] == ["node3 gpu 1"]
    unread = replace(snapshot.devices[0], readings={}, probe_s=None)
    for sort in ("utilisation", "power", "temperature", "clock", "probe"):
        assert sorted_devices([unread, *snapshot.devices[1:]], sort)[-1].readings.get(sort) is None
    assert sorted_devices([unread, *snapshot.devices[1:]], "power")[-1] == unread


@pytest.mark.parametrize("page", list(KEYS))
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 8)])
@pytest.mark.parametrize("n_nodes", [3, 126])
def test_every_page_fits_every_terminal_with_its_keys_at_the_bottom(
    page: Page, width: int, height: int, n_nodes: int
) -> None:
    lines = printed(snapshot_of(n_nodes, 8), View(page, selected=3, device="node1 gpu 3"), width, height)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width
    assert "q quit" in lines[-1] or width < 80
    assert "train-abc_1234" in lines[0]


def test_of_a_thousand_devices_the_accused_and_the_slow_are_on_the_first_screen() -> None:
    text = "\n".join(printed(snapshot_of(126, 8), View(), 80, 24))
    assert "node3 gpu 1" in text
    assert "1.20" in text
    assert "devices 1 to 19 of 1,008; sorted by worst" in text


def test_at_level_0_the_columns_are_missing_and_it_says_how_to_get_them() -> None:
    text = "\n".join(printed(snapshot_of(level=0), View(), 120, 24))
    assert "util %" not in text
    assert "--telemetry-level=3" in text
    assert "probe ms" in text


def test_one_device_in_depth() -> None:
    text = "\n".join(printed(snapshot_of(), View("depth", device="node2 gpu 0"), 80, 24))
    for words in ("node2 gpu 0", "left out", "300 W", "10.00 ms", "35 % slower than its peers", "thermal throttling"):
        assert words in text


def test_json_says_null_where_nothing_is_known() -> None:
    found = json.loads(json.dumps(snapshot_of().to_json(), allow_nan=False))
    assert found["format"] == 1
    assert found["launches"][1]["ended_s"] is None
    assert found["verdicts"][0]["host"] == "node2"
    assert found["devices"][0]["readings"]["power_w"] == 300


def names(count: int) -> list[str]:
    return [f"row {number}" for number in range(count)]


def walk(view: View, keys: Sequence[str], count: int, room: int = ROOM) -> View | None:
    for key in keys:
        following = pressed(key, view, names(count), room)
        if following is None:
            return None
        view = following
    return view


def test_moving_stays_within_the_rows_and_keeps_the_selected_one_in_sight() -> None:
    assert walk(View(), ["up"], 100) == View()
    assert walk(View(), ["down"] * 25, 100) == View(selected=25, top=6)
    assert walk(View(), ["end"], 100) == View(selected=99, top=80)
    assert walk(View(), ["end", "page-up", "home"], 100) == View()
    assert walk(View(page="history"), ["page-down", "page-down"], 30) == View(page="history", top=10)
    assert within(View(selected=50, top=40), names(10), ROOM) == View(selected=9, top=9)
    assert within(View(selected=5), [], ROOM) == View()


def test_keys_change_page_and_order_and_leave() -> None:
    assert walk(View(), ["s"], 9) == View(sort=SORTS[1])
    assert walk(View(), ["s"] * len(SORTS), 9) == View()
    assert walk(View(), ["r"], 9) == View(backwards=True)
    assert walk(View(), ["n", "m", "h", "d"], 9) == View()
    assert walk(View(), ["x", "escape"], 9) == View()
    assert walk(View(), ["q"], 9) is None


def test_the_device_in_depth_stays_the_same_when_the_order_changes() -> None:
    looking = walk(View(), ["down", "enter"], 3)
    assert looking == View("depth", selected=1, device="row 1")
    assert within(looking, ["row 1", "row 0", "row 2"], ROOM) == View("depth", selected=0, device="row 1")
    assert walk(looking, ["down", "escape"], 3) == View(selected=2, device="row 2")


def test_every_key_that_is_listed_does_something() -> None:
    snapshot = snapshot_of(126, 8)
    for page, listed in KEYS.items():
        view = View(page, selected=50, top=50, device="node7 gpu 2")
        rows = rows_of(snapshot, view, 80)
        for name in (word for word in listed.split() if len(word) == 1 and word.isalpha()):
            assert pressed(name, view, rows, ROOM) != within(view, rows, ROOM), f"{name} on {page}"


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        ("\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        ("\x1b[H\x1b[F\x1b[1~\x1b[4~", ["home", "end", "home", "end"]),
        ("\x1b", ["escape"]),
        ("\r\n", ["enter", "enter"]),
        ("\x1b[200~s", ["s"]),
        ("\x1b[", []),
    ],
)
def test_keys_are_known_by_what_terminals_send(sent: str, keys: list[str]) -> None:
    assert keys_of(sent) == keys


def job(name: str, job_id: str) -> RunningJob:
    return RunningJob(name, job_id, Path("/nowhere"), Endpoint("127.0.0.1", 1, name, "secret"))


def test_a_job_is_chosen_by_name_or_id_or_because_it_is_the_only_one() -> None:
    one, other, third = job("train", "a1"), job("train", "b2"), job("eval", "c3")
    assert choose([one], None) == one
    assert choose([one, other, third], "eval") == third
    assert choose([one, other, third], "b2") == other
    assert choose([one, other, third], "train-a1") == one


@pytest.mark.parametrize(
    ("jobs", "wanted", "message"),
    [
        ([], None, "no job of yours runs on this machine"),
        ([job("train", "a1"), job("eval", "c3")], None, "2 jobs run: name one of train-a1, eval-c3"),
        ([job("train", "a1"), job("train", "b2"), job("eval", "c3")], "train", "name one of train-a1, train-b2"),
        ([job("train", "a1")], "eval", "no job 'eval' runs on this machine: those that do are train-a1"),
    ],
)
def test_a_choice_that_cannot_be_made_says_what_there_is(jobs: list[RunningJob], wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(jobs, wanted)


def test_what_a_program_says_cannot_move_the_cursor() -> None:
    snapshot = snapshot_of()
    line = Line(T0, printable("notice"), printable("all\x1b[2Jgone\nor not"))
    spoken = replace(snapshot, story=replace(snapshot.story, lines=(line,)))
    text = "\n".join(printed(spoken, View("history"), 80, 24))
    assert "\x1b" not in text
    assert "all [2Jgone or not" in text


def test_a_job_without_devices_says_so() -> None:
    empty = replace(snapshot_of(), devices=())
    assert any("no devices" in line for line in printed(empty, View(), 80, 24))
