"""What the views show, as pure functions: order, columns, keys, and that it fits any terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.command.views import print_status
from laggard.resilience.errors import UsageError
from laggard.resilience.record.entries import Told
from laggard.resilience.record.journal import Entry
from laggard.resilience.record.running_jobs import RunningJob, choose
from laggard.resilience.record.timeline import LogLine, timeline_of_entries
from laggard.resilience.text import printable
from laggard.resilience.views.grid import CELL, column_of, grid_of
from laggard.resilience.views.screen import HELP, Body, Page, View, body_of, settled, whole_screen
from laggard.resilience.views.snapshot import Readings, Snapshot, compose
from laggard.resilience.views.tables import SORTS, sorted_devices
from laggard.resilience.views.top import after_key, found, keys_of
from laggard.telemetry.course import JobBegan, LaunchBegan
from tests.made_up_job import T0, entries

ROOM = 20
MEASURED = MappingProxyType(
    {"DeviceUtilization": 90.0, "DevicePowerUsage": 300.0, "DeviceSmClock": 1700.0, "DeviceMemoryUtilization": 50.0}
)
PAGES: tuple[Page, ...] = ("devices", "overview", "nodes", "history", "metrics")


def snapshot_of(n_nodes: int = 3, n_gpus: int = 2, *, level: int = 3, hostile: str = "") -> Snapshot:
    told = [*entries(n_nodes, n_gpus, name=f"train{hostile}", ended=False)]
    if hostile:
        told.append(Entry(T0 + 399, Told("notice", hostile)))
    timeline = timeline_of_entries([Entry.from_json(entry.to_json()) for entry in told])
    devices = [(f"node{node + 1}", str(gpu)) for node in range(n_nodes) for gpu in range(n_gpus)]
    readings = Readings(
        devices=dict.fromkeys(devices, MEASURED),
        nodes={host: {"load_average": 1.0} for host, _ in devices},
        probes={device: [0.01, 0.012 if device == ("node3", "1") else 0.01] for device in devices},
        metrics={f"loss{hostile}": [1.0, 3.0]},
        models={device: f"H100{hostile}" for device in devices if hostile},
    )
    return compose(timeline, readings if level else replace(readings, devices={}), T0 + 400, level=level, port=4242)


def printed(snapshot: Snapshot, view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        body = body_of(snapshot, view, width, height)
        console.print(whole_screen(snapshot, settled(view, body), body, width))
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
    well = [
        replace(last, of=replace(last.of, host=host, gpu=gpu, severity="well again")) for host, gpu in sorted(accused)
    ]
    timeline = replace(before.timeline, verdicts=(*before.timeline.verdicts, *well))
    after = compose(timeline, Readings(), T0 + 400, level=3, port=4242)
    assert accused
    assert [device.verdict for device in after.devices if device.verdict is not None] == []


def test_before_the_first_launch_every_node_waits() -> None:
    timeline = timeline_of_entries([next(entries())])
    snapshot = compose(timeline, Readings(), T0 + 1, level=0, port=0)
    assert {node.role for node in snapshot.nodes} == {"waiting"}


def test_the_worst_come_first_and_what_was_not_measured_last() -> None:
    snapshot = snapshot_of()
    assert [device.name for device in sorted_devices(snapshot.devices, "worst")][:1] == ["node3 gpu 1"]
    unread = replace(snapshot.devices[0], readings={}, probe_s=None)
    for sort in ("utilisation", "power", "temperature", "clock", "probe"):
        assert sorted_devices([unread, *snapshot.devices[1:]], sort)[-1].readings.get(sort) is None
    assert sorted_devices([unread, *snapshot.devices[1:]], "power")[-1] == unread


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (60, 20), (40, 8)])
@pytest.mark.parametrize("n_nodes", [2, 126])
def test_every_page_fits_every_terminal_with_its_keys_at_the_bottom(
    page: Page, details: bool, width: int, height: int, n_nodes: int
) -> None:
    lines = printed(snapshot_of(n_nodes, 8), View(page, selected=3, details=details), width, height)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width
    assert lines[-1].rstrip().endswith("? help  q quit")
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


@pytest.mark.parametrize(("column", "width"), [("power W", 76), ("MHz", 76), ("memory %", 110)])
def test_a_column_is_there_if_the_terminal_is_wide_enough_for_it(column: str, width: int) -> None:
    shown = [column in "\n".join(printed(snapshot_of(), View(), columns, 24)) for columns in (width - 1, width)]
    assert shown == [False, True]


def test_the_details_of_one_device() -> None:
    text = "\n".join(printed(snapshot_of(), View(name="node2 gpu 0", details=True), 80, 24))
    for words in ("node2 gpu 0", "excluded", "300 W", "10.00 ms", "35 % slower than its 3 peers", "thermal throttling"):
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
    } | {"findings": 1, "evidence": 0.0}
    assert found["devices"][0]["finding"]["slowdown"] == 1.5
    assert found["devices"][-1]["against_peers"] == pytest.approx(1.2)
    assert {"role": "left out"}.items() <= found["devices"][0].items()
    assert found["devices"][0]["readings"]["power_w"] == 300


@given(st.lists(st.integers(1, 9), min_size=1, max_size=80), st.integers(40, 200))
def test_every_device_has_a_place_of_its_own_on_the_map_within_the_width(counts: list[int], width: int) -> None:
    one = snapshot_of().devices[0]
    devices = [replace(one, host=f"n{node}", gpu=str(gpu)) for node, count in enumerate(counts) for gpu in range(count)]
    grid = grid_of(devices, width)
    assert len(set(grid.places)) == len(devices)
    assert all(0 <= line < grid.height and 0 <= column <= width - CELL for line, column in grid.places)
    taken = set(grid.places) | {(line, column + 1) for line, column in grid.places}
    named = {(line, column + at) for line, column, text in grid.labels for at in range(len(text))}
    assert not taken & named
    for at in (0, len(devices) // 2, len(devices) - 1):
        below, above = grid.neighbour(at, 1), grid.neighbour(at, -1)
        assert grid.places[above][0] <= grid.places[at][0] <= grid.places[below][0]


def test_the_map_has_every_device_with_a_sign_that_needs_no_colour() -> None:
    lines = printed(snapshot_of(126, 8), View("overview"), 120, 40)
    drawn = "".join(line for line in lines[4:-1] if "as its peers" not in line)
    assert "1,008 devices by probe time against peers" in lines[2]
    assert lines[3].startswith("node1 gpu 0: 10.00 ms, as fast as its peers")
    assert [drawn.count(sign) for sign in "·+x/"] == [999, 1, 1, 7], drawn
    assert any("x  found slow, not in use" in line for line in lines)
    few = "\n".join(printed(snapshot_of(3, 2), View("overview", colour=1), 60, 20))
    assert "node3  9 9" in few
    assert "6 devices by utilisation, %" in few
    assert "0  0 % to   9  100 %" in few


def test_the_map_says_so_where_nothing_was_measured() -> None:
    snapshot = snapshot_of(level=0)
    devices = tuple(replace(device, probe_s=None, peer_ratio=None) for device in snapshot.devices)
    lines = printed(replace(snapshot, devices=devices), View("overview"), 80, 24)
    assert "no reading" in "".join(lines)


@pytest.mark.parametrize("n_nodes", [2, 126, 1000])
def test_moving_on_the_map_stays_on_it_and_in_sight(n_nodes: int) -> None:
    snapshot, view = snapshot_of(n_nodes, 8), View("overview")
    body = body_of(snapshot, view, 80, 24)
    for key in ("end", "down", "right", "up", "page-up", "page-down", "home", "left", "up", "right"):
        after = after_key(key, view, body)
        assert after is not None
        view = after
        line, _ = body.grid.places[view.selected]
        assert line in range(body.grid.height)[body.in_sight(view.selected)]
    assert view.name == "node1 gpu 1"


def test_a_search_goes_to_the_next_row_that_has_the_text_on_every_page() -> None:
    assert walk(View(), ["/", "7"], 100) == at(7, find="7")
    assert walk(View(), [*"/7", "enter"], 100) == at(7)
    assert walk(View(), [*"/7", "down", "down", "up"], 100) == at(17, find="7")
    assert walk(View(), [*"/79", "backspace"], 100) == at(79, find="7")
    assert walk(View(), [*"/ROW 42", "escape"], 100) == at(42)
    assert walk(View(), [*"/q?s", "enter"], 100) == at(0), "every letter belongs to the text"
    assert walk(View("nodes"), [*"/50", "enter"], 100) == at(50, page="nodes")
    assert walk(View(details=True), [*"/9", "enter"], 10) == at(9, details=True)
    assert found([], "x", 0, 0) == 0
    line = printed(snapshot_of(), View(find="node9"), 60, 20)[-1]
    assert line.strip() == "find: node9▏  not found"


def test_help_names_every_key_at_sixty_columns() -> None:
    text = "\n".join(printed(snapshot_of(), View(help=True), 60, 24))
    for key in HELP:
        assert re.search(rf"^{re.escape(key)} ", text, re.MULTILINE), key
    assert "q quit" in text


def test_the_devices_keep_their_columns_at_sixty_columns() -> None:
    text = "\n".join(printed(snapshot_of(126, 8), View(), 60, 24))
    assert "node3 gpu 1     90    12.00    1.20" in text
    assert "…" not in text.split("sorted by worst")[1]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("details", [False, True])
def test_no_name_steers_the_terminal(page: Page, details: bool) -> None:
    snapshot = snapshot_of(hostile="\x1b[31m$\\frac{<script>\x9b2J\r")
    console = Console(file=io.StringIO(), width=200, height=40, color_system=None, legacy_windows=False)
    body = body_of(snapshot, View(page), 200, 40)
    with console.capture() as capture:
        console.print(whole_screen(snapshot, settled(View(page, details=details), body), body, 200))
    assert not set(capture.get()) & {"\x1b", "\x9b", "\r"}
    assert "$\\frac{<script>" in capture.get()


def test_no_name_in_the_status_steers_the_terminal_or_vanishes() -> None:
    hostile = "\x1b[31m$\\frac{<script>\x9b2J\r\x1b]0;title\x07[bold]"
    snapshot = snapshot_of(hostile=hostile)
    job = next(entries()).record
    assert isinstance(job, JobBegan)
    hosts = tuple(f"{node.hostname}{hostile}" for node in job.nodes)
    nodes = tuple(replace(node, hostname=host) for node, host in zip(job.nodes, hosts, strict=True))
    told = [Entry(T0, replace(job, nodes=nodes)), Entry(T0, LaunchBegan(0, hosts, (), hosts[0]))]
    timeline = timeline_of_entries([Entry.from_json(entry.to_json()) for entry in told])
    of_nodes = compose(timeline, Readings(metrics={f"loss{hostile}": [1.0]}), T0 + 400, level=3, port=4242)
    for shown in (snapshot, of_nodes):
        console = Console(file=io.StringIO(), width=200, color_system=None, legacy_windows=False, highlight=False)
        with console.capture() as capture:
            print_status(shown, console, None)
        text = capture.get()
        assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
        assert re.search(r"loss.*\$\\frac\{<script>.*\[bold\]", text)
    assert re.search(r"node1 .*\$\\frac\{<script>.*\[bold\]", text)


def rows(names: Sequence[str]) -> Body:
    return Body(names, column_of(len(names)), ROOM, lambda *_: "")


def at(selected: int, **rest: Any) -> View:
    return View(selected=selected, name=f"row {selected}", **rest)


def walk(view: View, keys: Sequence[str], count: int) -> View | None:
    body = rows([f"row {number}" for number in range(count)])
    for key in keys:
        following = after_key(key, settled(view, body), body)
        if following is None:
            return None
        view = settled(following, body)
    return view


def test_moving_stays_within_the_rows_and_keeps_the_selected_one_in_sight() -> None:
    assert walk(View(), ["up"], 100) == at(0)
    assert walk(View(), ["down"] * 25, 100) == at(25)
    assert walk(View(), ["end"], 100) == at(99)
    assert walk(View(), ["end", "page-up", "home"], 100) == at(0)
    assert walk(View("history"), ["page-down", "page-down"], 30) == at(29, page="history")
    assert settled(View(selected=50), rows(["a", "b"])) == View(selected=1, name="b")
    assert settled(View(selected=5), rows([])) == View()
    hundred = rows([str(number) for number in range(100)])
    assert [hundred.in_sight(each) for each in (0, 50, 99)] == [slice(0, 20), slice(40, 60), slice(80, 100)]
    assert rows(["a", "b"]).in_sight(1) == slice(0, 20)


def test_keys_change_page_and_order_and_leave() -> None:
    assert walk(View(), ["s"], 9) == at(0, sort=list(SORTS)[1])
    assert walk(View(), ["s"] * len(SORTS), 9) == at(0)
    assert walk(View(), ["down", "n", "m", "h", "d"], 9) == at(1)
    assert walk(View(), ["c"], 9) == at(0)
    assert walk(View("overview"), ["c", "c"], 9) == at(0, page="overview", colour=2)
    assert walk(View(), ["?"], 9) == at(0, help=True)
    assert walk(View(), ["?", "d"], 9) == at(0)
    assert walk(View(), ["?", "q"], 9) is None
    assert walk(View(), ["x", "escape"], 9) == at(0)
    assert walk(View(), ["q"], 9) is None


def test_the_selected_device_stays_the_same_when_the_order_changes() -> None:
    looking = walk(View(), ["down", "enter"], 3)
    assert looking == at(1, details=True)
    assert settled(looking, rows(["row 1", "row 0", "row 2"])) == View(selected=0, name="row 1", details=True)
    assert walk(looking, ["down", "escape"], 3) == at(2)
    assert walk(View("overview"), ["right", "enter", "escape"], 3) == at(1, page="overview")
    assert walk(at(2), ["o"], 3) == at(2, page="overview")


def test_every_key_of_a_letter_that_is_listed_does_something() -> None:
    snapshot = snapshot_of(126, 8)
    view = View("devices", selected=50)
    body = body_of(snapshot, view, 80, 24)
    keys = [key for key in HELP if len(key) == 1]
    assert [key for key in keys if after_key(key, replace(view, page="overview"), body) == view] == []
    assert keys == ["d", "o", "n", "m", "h", "/", "s", "c", "q"]


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        ("\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        ("\x1b[H\x1b[F\x1b[1~\x1b[4~", ["home", "end", "home", "end"]),
        ("\x1b", ["escape"]),
        ("\r\n", ["enter", "enter"]),
        ("\x1b[200~s", ["\x1b[200~", "s"]),
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
