"""Sections: what counts as their time, on the host and on a GPU, and what they cost a program in no job: nothing."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

import laggard
from laggard.collectors import section_sender, sections
from laggard.collectors.sections import Section
from laggard.kvstore.client.environment import ENDPOINT_FILE
from tests.fake_cupy.machine import Board, cupy_on


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """In a job, with no thread that sends."""
    clock = Clock()
    sections._forget()
    monkeypatch.setenv(ENDPOINT_FILE, "/nowhere")
    monkeypatch.setattr(sections, "perf_counter", clock)
    monkeypatch.setattr(section_sender, "send_sections", lambda *_: None)
    yield clock
    sections._forget()


def seconds_of(name: str) -> list[float]:
    return [round(value, 9) for each in sections._sections.values() if each.name == name for value in each.seconds]


def test_a_section_has_the_time_between_its_ends(clock: Clock) -> None:
    for duration_s in (1.5, 2.5):
        with laggard.section("forward"):
            clock.now_s += duration_s
    assert seconds_of("forward") == [1.5, 2.5]


def test_what_is_waited_within_a_section_does_not_count_however_deep(clock: Clock) -> None:
    with laggard.section("step"):
        clock.now_s += 1
        with laggard.section("backward"):
            clock.now_s += 2
            with laggard.section("all_reduce", waits=True):
                clock.now_s += 10
        with laggard.section("barrier", waits=True):
            clock.now_s += 20
    assert seconds_of("step") == [3]
    assert seconds_of("backward") == [2]
    assert seconds_of("all_reduce") == [10]


def test_a_section_may_be_within_itself_and_be_kept_in_a_variable(clock: Clock) -> None:
    layer = laggard.section("layer")
    with layer:
        clock.now_s += 1
        with layer:
            clock.now_s += 2
    assert seconds_of("layer") == [2, 3]


def test_a_use_that_ends_with_an_exception_does_not_count_and_disturbs_no_other(clock: Clock) -> None:
    with laggard.section("step"):
        with contextlib.suppress(KeyError), laggard.section("forward"):
            clock.now_s += 1
            raise KeyError
        clock.now_s += 1
    assert seconds_of("forward") == []
    assert seconds_of("step") == [2]


def test_threads_do_not_mix_their_sections(clock: Clock) -> None:
    is_open, may_close = threading.Event(), threading.Event()

    def load() -> None:
        with laggard.section("load", waits=True):
            is_open.set()
            may_close.wait(10)

    thread = threading.Thread(target=load)
    with laggard.section("step"):
        thread.start()
        assert is_open.wait(10)
        clock.now_s += 1
        may_close.set()
        thread.join()
    assert seconds_of("step") == [1]
    assert seconds_of("load") == [1]


def test_a_section_with_another_group_is_another_one(clock: Clock) -> None:
    for group in ("stage 0", 1):
        with laggard.section("forward", group=group):
            clock.now_s += 1
    assert [(each.name, each.group) for each in sections._sections.values()] == [
        ("forward", "stage 0"),
        ("forward", "1"),
    ]


@pytest.mark.parametrize("name", [3, "", None])
def test_a_name_that_is_no_text_is_refused_at_once(clock: Clock, name: str) -> None:  # noqa: ARG001 - as in a job
    with pytest.raises(TypeError, match=re.escape(f"the name of a section is {name!r}: it must be text")):
        laggard.section(name)


def test_a_name_in_each_step_fills_no_memory_and_is_reported_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sections._warn_of_too_many.cache_clear()
    for step in range(200):
        with laggard.section(f"step {step}"):
            clock.now_s += 1
    assert len(sections._sections) == sections.MAX_SECTIONS
    assert caplog.text.count("the others are not timed") == 1


def test_a_buffer_that_nobody_empties_keeps_the_newest(clock: Clock) -> None:
    for number in range(sections.MAX_BUFFERED + 5):
        with laggard.section("forward"):
            clock.now_s += number
    assert len(seconds_of("forward")) == sections.MAX_BUFFERED
    assert seconds_of("forward")[-1] == sections.MAX_BUFFERED + 4


def test_outside_a_job_nothing_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT_FILE)
    with laggard.section("forward"):
        clock.now_s += 1
    assert seconds_of("forward") == []


def test_a_forked_process_begins_anew() -> None:
    program = """
        import os, laggard
        from laggard.collectors import sections

        with laggard.section("forward"):
            pass
        assert list(sections._sections) == ["forward"]
        child = os.fork()
        if child == 0:
            os._exit(len(sections._sections))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    environment = os.environ | {ENDPOINT_FILE: "/nowhere", "LAGGARD_LAUNCH": "0", "LAGGARD_NODE": "node1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True)


@pytest.fixture
def board(clock: Clock) -> Iterator[Board]:  # noqa: ARG001 - the device is looked for in its place
    """A GPU that the program has begun to use through CuPy, which the next section looks for."""
    board = Board()
    with cupy_on(board) as cupy:
        cupy.zeros(4)
        sections._device.look_again()
        yield board


def run(board: Board, clock: Clock, seconds: float) -> None:
    """Submit work, which takes the host no time worth mentioning."""
    board.works("kernel", None, seconds)
    clock.now_s += 1e-5


def after_a_while(clock: Clock) -> None:
    clock.now_s += sections.DEVICE_TIMING_EVERY_S


def test_on_a_gpu_a_section_has_the_devices_time_without_what_the_device_waited(board: Board, clock: Clock) -> None:
    for _ in range(2):
        after_a_while(clock)
        with laggard.section("step"):
            run(board, clock, 0.25)
            with laggard.section("all_reduce", waits=True):
                run(board, clock, 4.0)
    assert seconds_of("step") == [0.25, 0.25]
    assert seconds_of("all_reduce") == [4.0, 4.0]
    assert sections._device.ordinal == 0


def test_what_is_waited_deep_within_a_step_is_known_without_timing_all_that_is_in_between(
    board: Board, clock: Clock
) -> None:
    for _ in range(3):
        after_a_while(clock)
        with laggard.section("step"):
            for _ in range(5):
                with laggard.section("layer"):
                    run(board, clock, 0.25)
                    with laggard.section("all_reduce", waits=True):
                        run(board, clock, 4.0)
    assert seconds_of("step") == [1.25] * 3
    assert seconds_of("layer") == [0.25] * 3, "the first of each step"


def test_nothing_waits_for_a_device_that_is_behind(board: Board, clock: Clock) -> None:
    board.stuck = True
    with laggard.section("forward"):
        run(board, clock, 0.5)
    assert seconds_of("forward") == []
    board.stuck = False
    after_a_while(clock)
    with laggard.section("forward"):
        run(board, clock, 0.75)
    assert seconds_of("forward") == [0.5, 0.75]


def test_a_section_that_is_used_very_often_is_timed_a_hundred_times_a_second(board: Board, clock: Clock) -> None:
    for _ in range(10_000):
        with laggard.section("layer"):
            run(board, clock, 1e-3)
    assert len(seconds_of("layer")) == pytest.approx(10_000 * 1e-5 / sections.DEVICE_TIMING_EVERY_S, abs=1)


def test_a_section_in_a_graph_that_is_captured_does_not_count_nor_what_is_around_it(board: Board, clock: Clock) -> None:
    import cupy

    with laggard.section("step"):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.captures = True
            with laggard.section("all_reduce", waits=True):
                run(board, clock, 1.0)
            stream.captures = False
    assert seconds_of("step") == seconds_of("all_reduce") == []


def test_a_section_that_was_open_when_the_device_came_into_use_does_not_count(clock: Clock) -> None:
    board = Board()
    with cupy_on(board) as cupy:
        with laggard.section("step"):
            cupy.zeros(4)
            sections._device.look_again()
            with laggard.section("forward"):
                run(board, clock, 1.0)
        (step,) = (each for each in sections._sections.values() if each.name == "step")
        samples, others = section_sender.SectionReadings().take([step], {"host": "node1"}, 0.0)
    assert samples == others == []


def test_a_device_in_trouble_costs_the_reading_and_nothing_else(board: Board, clock: Clock) -> None:
    with laggard.section("forward"):
        run(board, clock, 1.0)
    board.lost = True
    after_a_while(clock)
    with laggard.section("forward"):
        clock.now_s += 1
    assert seconds_of("forward") == [1.0]


def test_a_program_that_has_loaded_cupy_and_not_used_it_is_timed_on_the_host(clock: Clock) -> None:
    with cupy_on(Board()):
        sections._device.look_again()
        with laggard.section("forward"):
            clock.now_s += 2
    assert seconds_of("forward") == [2]


# -- what is sent ------------------------------------------------------------------------------------------------------


def used(name: str, *seconds: float, waits: bool = False, group: str | None = None) -> Section:
    section = Section(name, group, waits=waits)
    section.seconds.extend(seconds)
    return section


def test_the_median_of_an_interval_is_sent_and_a_section_that_waits_is_not_judged() -> None:
    forward, waiting = used("forward", 0.2, 0.1, 9.0), used("all_reduce", 5.0, waits=True)
    judged, others = section_sender.SectionReadings().take([forward, waiting, used("idle")], {"host": "node1"}, 7.0)
    assert [(each.metric, each.values, each.time_s) for each in judged] == [("section-time.forward", (0.2,), 7.0)]
    assert [each.metric for each in others] == ["section-time.all_reduce"]
    assert forward.seconds == deque()


def test_a_section_too_short_to_be_compared_is_not_judged() -> None:
    judged, others = section_sender.SectionReadings().take([used("tiny", 5e-5)], {"host": "node1"}, 7.0)
    assert judged == []
    assert [each.values for each in others] == [(5e-5,)]


def test_the_sections_own_group_comes_before_the_process_own() -> None:
    readings = section_sender.SectionReadings()
    [sample], _ = readings.take([used("forward", 1.0, group="stage 1")], {"host": "node1", "group": "stage 0"}, 7.0)
    assert sample.tags == {"host": "node1", "group": "stage 1"}


def test_steps_that_are_longer_than_an_interval_say_so_and_a_pause_does_not() -> None:
    readings, forward = section_sender.SectionReadings(), Section("forward")
    strides = []
    for number in range(40):
        if number % 4 == 0 and number != 20:  # one step in four intervals, and once a pause
            forward.seconds.append(10.0)
        samples, _ = readings.take([forward], {"host": "node1"}, float(number))
        strides += [sample.tags.get("stride") for sample in samples]
    assert strides == [None] + ["4"] * 8


@pytest.mark.parametrize(
    ("environ", "ordinal", "tags"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5"}, None, {"rank": "3", "gpu": "5"}),
        ({"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5"}, 0, {"rank": "3", "gpu": "4"}),
        ({"RANK": "3", "LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "4,5"}, None, {"rank": "3", "gpu": "4"}),
        ({"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4"}, None, {"rank": "3", "gpu": "4"}),
        ({"RANK": "3", "LOCAL_RANK": "1"}, None, {"rank": "3"}),
        ({"RANK": "3", "LOCAL_RANK": "1"}, 1, {"rank": "3", "gpu": "1"}),
        ({"RANK": "1", "LOCAL_RANK": "1", "LAGGARD_VIRTUAL_DEVICES": "2"}, None, {"rank": "1", "gpu": "1"}),
        ({"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, None, {"rank": "7"}),
        ({"CUDA_VISIBLE_DEVICES": "4"}, None, {"gpu": "4"}),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, None, {"process": "99"}),
        ({}, None, {"process": "99"}),
    ],
)
def test_a_process_is_known_by_its_rank_and_device(
    environ: dict[str, str], ordinal: int | None, tags: dict[str, str]
) -> None:
    assert section_sender.worker_tags(environ, ordinal, 99) == tags


def test_without_a_launch_record_nothing_is_sent_and_that_is_logged(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    del clock
    from laggard.kvstore.client.connection import current_session

    monkeypatch.setenv(ENDPOINT_FILE, str(tmp_path / "none"))
    monkeypatch.setenv("LAGGARD_LAUNCH", "0")
    monkeypatch.setenv("LAGGARD_NODE", "node1")
    current_session.cache_clear()
    section_sender._send({}, lambda: None, lambda: None)
    assert "sections are not sent" in caplog.text
