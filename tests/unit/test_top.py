"""``laggard top`` on terminals of several sizes, by Textual's own driver: panes, keys, mouse, search."""

from __future__ import annotations

import asyncio
import html
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import redis
from rich.cells import cell_len
from textual.app import App
from textual.pilot import Pilot

from laggard.resilience.record.timeline import LogLine
from laggard.resilience.text import printable
from laggard.resilience.views.panes import OTHERS, shown_panes
from laggard.resilience.views.snapshot import DeviceState, Snapshot
from laggard.resilience.views.top import Chooser, Top
from tests.made_up_job import T0
from tests.unit.test_views import snapshot_of

DEADLINE_S = 60.0
CELL_WIDTH = 12.2  # of rich's picture of a terminal
WAITING = 3600.0


class Job:
    """A job that answers with what it is given, or not at all."""

    def __init__(self, *answers: Snapshot | Exception) -> None:
        self.answers = list(answers)

    def snapshot(self) -> Snapshot:
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def history(self, device: DeviceState) -> Mapping[str, Sequence[float]]:
        return {name: [value - 1, value] for name, value in device.readings.items()}


def screen_of(app: App[str]) -> str:
    """Return the text on the screen."""
    lines: dict[float, dict[int, str]] = defaultdict(dict)
    texts = re.findall(r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', app.export_screenshot())
    for x, y, text in texts:
        lines[float(y)][round(float(x) / CELL_WIDTH)] = html.unescape(text).replace("\xa0", " ")
    rows = []
    for _, parts in sorted(lines.items()):
        row = ""
        for column, text in sorted(parts.items()):
            row = row.ljust(column)[:column] + text
        rows.append(row.rstrip("\n"))
    return "\n".join(rows)


async def sees(pilot: Pilot[str], pattern: str) -> str:
    """Wait until the screen matches, and return it."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_S
    while not re.search(pattern, text := screen_of(pilot.app), re.DOTALL):
        assert loop.time() < until_s, f"no {pattern!r} on the screen in time:\n{text}"
        await pilot.pause(0.1)
    await pilot.pause()  # until everything has its place
    return screen_of(pilot.app)


def on_terminal(app: App[str], size: tuple[int, int], act: Callable[[Pilot[str]], Awaitable[object]]) -> str | None:
    """Run an application on a terminal of this size, and return its result."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await act(pilot)

    asyncio.run(run())
    return app.return_value


def top(*answers: Snapshot | Exception, ended: bool = False, interval_s: float = WAITING) -> Top:
    return Top(Job(*answers), lambda: ended, interval_s)


@pytest.mark.parametrize("size", [(36, 20), (80, 24), (120, 40), (250, 60)])
def test_every_pane_is_reached_by_its_key_and_fits_every_terminal(size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, r"train-abc_1234.*32 devices.*node3 gpu 1")
        for key, pattern in {
            "o": r"32 devices.*node1  .*· ",
            "n": r"16 nodes.*node2",
            "l": r"launches.*launch 1",
            "h": r"history.*verdict",
            "m": r"the program's metrics.*loss",
            "d": r"32 devices.*node3 gpu 1",
            "enter": r"node3 gpu 1.*slower than its peers",
            "z": r"node3 gpu 1.*slower than its peers",
        }.items():
            await pilot.press(key)
            text = await sees(pilot, f"{pattern}.*q quit")
            assert max(map(cell_len, text.splitlines())) <= size[0], text
            assert len(text.splitlines()) <= size[1]

    on_terminal(top(snapshot_of(16, 2)), size, act)


@pytest.mark.parametrize(
    ("size", "page", "zoomed", "shown"),
    [
        ((80, 20), "devices", False, {"devices"}),
        ((80, 24), "devices", False, {"devices", "device"}),
        ((80, 24), "devices", True, {"devices"}),
        ((80, 24), "map", False, {"map", "legend", "device"}),
        ((80, 60), "nodes", False, {"nodes"}),
        ((250, 24), "history", False, {"history"}),
        ((110, 32), "nodes", False, {"devices", *OTHERS}),
        ((110, 32), "map", False, {"map", "legend", *OTHERS}),
        ((250, 60), "nodes", True, {"nodes"}),
    ],
)
def test_a_small_terminal_shows_the_chosen_pane_and_a_large_one_all(
    size: tuple[int, int], page: str, zoomed: bool, shown: set[str]
) -> None:
    of_devices = page if page == "map" else "devices"
    assert shown_panes(page, of_devices, *size, zoomed=zoomed) == shown


def test_a_terminal_that_grows_shows_the_other_panes() -> None:
    async def act(pilot: Pilot[str]) -> None:
        assert "nodes ─" not in await sees(pilot, "6 devices")
        await pilot.resize_terminal(120, 40)
        await sees(pilot, "3 nodes.*the program's metrics.*launches.*history")
        await pilot.resize_terminal(80, 24)
        while "3 nodes" in screen_of(pilot.app):
            await pilot.pause(0.02)

    on_terminal(top(snapshot_of()), (80, 24), act)


def test_a_mouse_chooses_devices_panes_and_keys() -> None:
    async def act(pilot: Pilot[str]) -> None:
        text = await sees(pilot, "node1 gpu 0")
        line = next(number for number, row in enumerate(text.splitlines()) if "node1 gpu 0" in row)
        await pilot.click(offset=(5, line))
        await sees(pilot, "─ node1 gpu 0 ─.*primary")
        keys = (await sees(pilot, "n nodes")).splitlines()
        await pilot.click(offset=(keys[-1].index("n nodes"), len(keys) - 1))
        await sees(pilot, "3 nodes")

    on_terminal(top(snapshot_of()), (80, 24), act)


def test_a_search_leaves_the_devices_and_nodes_that_have_the_text() -> None:
    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, "128 devices")
        await pilot.press("slash", *"ODE7", "enter")
        text = await sees(pilot, "8 devices with 'ODE7'")
        assert "node3 gpu 1" not in text
        await pilot.press("down", "down", "enter")
        await sees(pilot, "─ node7 gpu 2 ─")
        await pilot.press("escape")
        await sees(pilot, "128 devices, by worst")
        await pilot.press("n", "down", "enter")
        await sees(pilot, "8 devices with 'node1 gpu'")

    on_terminal(top(snapshot_of(16, 8)), (80, 24), act)


def test_keys_sort_the_devices_and_colour_the_map() -> None:
    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, r"by worst.*node3 gpu 1.*node1 gpu 0")
        await pilot.press("s")
        await sees(pilot, r"by name.*node1 gpu 0.*node3 gpu 1")
        await pilot.press("o")
        await sees(pilot, r"6 devices by probe time against peers.*node3 +· \+.*x  found slow, not in use")
        await pilot.press("c")
        await sees(pilot, r"6 devices by utilisation, %.*node3 +9 9.*0  0 % to   9  100 %")
        await pilot.press("question_mark")
        await sees(pilot, "Page up")

    on_terminal(top(snapshot_of()), (120, 20), act)


def test_the_chosen_device_stays_chosen_when_the_order_changes() -> None:
    first = snapshot_of()
    slower = tuple(replace(each, peer_ratio=9.0) if each.name == "node1 gpu 1" else each for each in first.devices)
    job = Job(first)
    app = Top(job, lambda: False, 0.05)

    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, r"node3 gpu 1.*node1 gpu 0")
        await pilot.press("down")
        await sees(pilot, "─ node1 gpu 0 ─")
        job.answers = [replace(first, devices=slower)]
        await sees(pilot, r"9\.00.*─ node1 gpu 0 ─")
        assert app.query_one("#devices").chosen == "node1 gpu 0"  # type: ignore[attr-defined]

    on_terminal(app, (80, 24), act)


def test_a_job_that_does_not_answer_is_shown_as_it_was_and_one_that_has_ended_ends_it() -> None:
    lost = redis.ConnectionError("refused")

    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, "no answer from the job for .*node1 gpu 0")
        await pilot.press("q")

    assert on_terminal(top(snapshot_of(), lost, interval_s=0.05), (80, 24), act) is None

    async def wait(pilot: Pilot[str]) -> None:
        while pilot.app.return_value is None:
            await pilot.pause(0.02)

    assert on_terminal(top(snapshot_of(), lost, ended=True, interval_s=0.05), (80, 24), wait) == "the job has ended"


@pytest.mark.parametrize("level", [0, 3])
def test_what_is_missing_says_how_to_get_it(level: int) -> None:
    async def act(pilot: Pilot[str]) -> None:
        text = await sees(pilot, "probe ms")
        assert ("--telemetry-level=3 shows utilisation" in text) == (level == 0)
        assert ("util %" in text) == (level == 3)

    on_terminal(top(snapshot_of(level=level)), (120, 24), act)


def test_a_job_without_devices_says_so() -> None:
    async def act(pilot: Pilot[str]) -> None:
        await sees(pilot, "0 devices.*no devices")
        for key in ("enter", "o", "down", "enter", "m", "n"):
            await pilot.press(key)
        await sees(pilot, "3 nodes")

    on_terminal(top(replace(snapshot_of(), devices=())), (80, 24), act)


def test_no_name_steers_the_terminal_or_vanishes() -> None:
    hostile = snapshot_of(hostile="\x1b[31m$\\frac{<script>\x9b2J\r[bold]")
    line = LogLine(T0, printable("notice"), printable("all\x1b[2Jgone\nor not [red]"))
    told = replace(hostile, timeline=replace(hostile.timeline, log=(*hostile.timeline.log, line)))

    async def act(pilot: Pilot[str]) -> None:
        text = await sees(pilot, "history")
        assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
        assert re.search(r"H100.*\$\\frac\{<script>.*\[bold\]", text)
        assert re.search(r"all \[2Jgone or not \[red\]", text)

    on_terminal(top(told), (250, 60), act)


def test_one_of_several_jobs_is_chosen_by_keys_or_none() -> None:
    async def second(pilot: Pilot[str]) -> None:
        await sees(pilot, "2 jobs are running.*eval-b2.*train-a1")
        await pilot.press("down", "enter")

    assert on_terminal(Chooser(["eval-b2", "train-a1"]), (36, 20), second) == "train-a1"

    async def leave(pilot: Pilot[str]) -> None:
        await pilot.press("ctrl+c")

    assert on_terminal(Chooser(["eval-b2", "train-a1"]), (36, 20), leave) is None
