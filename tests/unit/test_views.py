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

from laggard.kvstore.connection import Endpoint
from laggard.resilience.decision.options import UsageError
from laggard.resilience.record.journal import Entry
from laggard.resilience.record.running_jobs import RunningJob, choose
from laggard.resilience.record.timeline import LogLine, timeline_of_entries
from laggard.resilience.text import printable
from laggard.resilience.views.screen import KEYS, Page, View, rows_of, whole_screen
from laggard.resilience.views.snapshot import Readings, Snapshot, compose
from laggard.resilience.views.tables import SORTS, sorted_devices
from laggard.resilience.views.top import after_key, clamped, keys_of
from tests.made_up_job import T0, entries

ROOM = 20


def snapshot_of(n_nodes: int = 3, n_gpus: int = 2, *, level: int = 3) -> Snapshot:
    timeline = timeline_of_entries(
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
    return compose(timeline, readings if level else replace(readings, devices={}), T0 + 400, level=level, port=4242)


def printed(snapshot: Snapshot, view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(whole_screen(snapshot, view, width, height))
    return capture.get().splitlines()


def test_each_node_has_its_role_and_each_device_its_peers() -> None:
    snapshot = snapshot_of()
    assert {node.host: node.role for node in snapshot.nodes} == {
        "node1": "primary",
        "node2": "excluded",
        "node3": "in use",
    }
    ratios = {device.name: device.peer_ratio for device in snapshot.devices}
    assert ratios["node3 gpu 1"] == pytest.approx(1.2)
    assert ratios["node1 gpu 0"] == 1
    assert ratios["node2 gpu 0"] is None  # not in use, so not a peer of any device


def test_a_device_that_is_well_again_is_not_shown_as_slow() -> None:
    before = snapshot_of()
    accused = {(device.host, device.gpu) for device in before.devices if device.verdict is not None}
    last = before.timeline.verdicts[-1]
    well = [replace(last, host=host, gpu=gpu, severity="well again") for host, gpu in sorted(accused)]
    timeline = replace(before.timeline, verdicts=(*before.timeline.verdicts, *well))
    after = compose(timeline, Readings(), T0 + 400, level=3, port=4242)
    assert accused
    assert [device.verdict for device in after.devices if device.verdict is not None] == []


def test_before_the_first_launch_every_node_waits() -> None:
    job = next(entries())
    timeline = timeline_of_entries([Entry(job.pop("time_s"), job.pop("event"), job)])
    snapshot = compose(timeline, Readings({}, {}, {}, {}, {}), T0 + 1, level=0, port=0)
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


def test_the_details_of_one_device() -> None:
    text = "\n".join(printed(snapshot_of(), View("device", device="node2 gpu 0"), 80, 24))
    for words in ("node2 gpu 0", "excluded", "300 W", "10.00 ms", "35 % slower than its peers", "thermal throttling"):
        assert words in text


def test_json_keeps_its_keys_and_says_null_for_unknown() -> None:
    found = json.loads(json.dumps(snapshot_of().to_json(), allow_nan=False))
    assert found["format"] == 1
    assert found["launches"][1]["ended_s"] is None
    assert found["launches"][0]["left_out"] == ["node2"]
    assert found["verdicts"][0]["host"] == "node2"
    assert found["nodes"][0] == {
        "host": "node2",
        "role": "left out",
        "devices": 2,
        "readings": {"load_average": 1.0},
    } | {"findings": 1}
    assert found["devices"][0]["finding"]["slowdown"] == 1.5
    assert found["devices"][-1]["against_peers"] == pytest.approx(1.2)
    assert {"role": "left out"}.items() <= found["devices"][0].items()
    assert found["devices"][0]["readings"]["power_w"] == 300


def names(count: int) -> list[str]:
    return [f"row {number}" for number in range(count)]


def walk(view: View, keys: Sequence[str], count: int, room: int = ROOM) -> View | None:
    for key in keys:
        following = after_key(key, view, names(count), room)
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
    assert clamped(View(selected=50, top=40), names(10), ROOM) == View(selected=9, top=9)
    assert clamped(View(selected=5), [], ROOM) == View()


def test_keys_change_page_and_order_and_leave() -> None:
    assert walk(View(), ["s"], 9) == View(sort=SORTS[1])
    assert walk(View(), ["s"] * len(SORTS), 9) == View()
    assert walk(View(), ["r"], 9) == View(backwards=True)
    assert walk(View(), ["n", "m", "h", "d"], 9) == View()
    assert walk(View(), ["x", "escape"], 9) == View()
    assert walk(View(), ["q"], 9) is None


def test_the_selected_device_stays_the_same_when_the_order_changes() -> None:
    looking = walk(View(), ["down", "enter"], 3)
    assert looking == View("device", selected=1, device="row 1")
    assert clamped(looking, ["row 1", "row 0", "row 2"], ROOM) == View("device", selected=0, device="row 1")
    assert walk(looking, ["down", "escape"], 3) == View(selected=2, device="row 2")


def test_every_key_that_is_listed_does_something() -> None:
    snapshot = snapshot_of(126, 8)
    for page, listed in KEYS.items():
        view = View(page, selected=50, top=50, device="node7 gpu 2")
        rows = rows_of(snapshot, view, 80)
        for name in (word for word in listed.split() if len(word) == 1 and word.isalpha()):
            assert after_key(name, view, rows, ROOM) != clamped(view, rows, ROOM), f"{name} on {page}"


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
        ([], None, "no job of yours is running on this machine"),
        ([job("train", "a1"), job("eval", "c3")], None, "2 jobs are running: name one of train-a1, eval-c3"),
        ([job("train", "a1"), job("train", "b2"), job("eval", "c3")], "train", "name one of train-a1, train-b2"),
        ([job("train", "a1")], "eval", "no job 'eval' is running on this machine; running: train-a1"),
    ],
)
def test_a_choice_that_cannot_be_made_says_what_there_is(jobs: list[RunningJob], wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(jobs, wanted)


def test_a_programs_text_cannot_move_the_cursor() -> None:
    snapshot = snapshot_of()
    line = LogLine(T0, printable("notice"), printable("all\x1b[2Jgone\nor not"))
    with_line = replace(snapshot, timeline=replace(snapshot.timeline, log=(line,)))
    text = "\n".join(printed(with_line, View("history"), 80, 24))
    assert "\x1b" not in text
    assert "all [2Jgone or not" in text


def test_a_job_without_devices_says_so() -> None:
    empty = replace(snapshot_of(), devices=())
    assert any("no devices" in line for line in printed(empty, View(), 80, 24))
