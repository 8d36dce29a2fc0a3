"""Readings of nodes and devices, from test files and test libraries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.collectors.metrics.node import NodeReader, control_group_of
from laggard.collectors.metrics.reading_loop import Reading, ReadingLoop, next_tick
from laggard.kvstore.series.sample_store import SampleStore
from laggard.telemetry.catalogue import NODE_METRICS
from tests.waiting import wait_until

DEADLINE_S = 20.0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(reader: NodeReader) -> dict[str, float]:
    return {reading.metric: reading.value for reading in reader.read()}


@pytest.mark.parametrize(("now_s", "expected_s"), [(10.0, 10.5), (10.2, 10.5), (10.5, 11.0)])
def test_ticks_are_whole_multiples_of_the_interval(now_s: float, expected_s: float) -> None:
    assert next_tick(now_s, 0.5) == expected_s


def test_a_node_is_read_by_dragons_names() -> None:
    found = read(NodeReader())

    assert {"load_average", "used_RAM", "cpu_percent", "num_running_processes"} <= set(found)
    assert found["num_running_processes"] >= 1
    assert 0 < found["used_RAM"] <= 100


def test_what_is_read_of_a_node_is_what_the_catalogue_has(tmp_path: Path) -> None:
    for what in ("cpu", "memory", "io"):
        write(tmp_path / "pressure" / what, "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n")
    group = {"memory.current": "1", "memory.max": "4", "cpu.max": "1 1", "cpu.stat": "throttled_usec 3"}
    for name, text in {**group, "memory.events": "oom_kill 2"}.items():
        write(tmp_path / "group" / name, f"{text}\n")
    not_on_every_machine = {"network_receive", "network_transmit", "network_errors", "disk_read", "disk_written"}

    found = set(read(NodeReader(tmp_path, tmp_path / "group")))

    assert found | not_on_every_machine == {metric.name for metric in NODE_METRICS}


def test_limits_and_pressure_come_from_the_control_group_and_the_kernel(tmp_path: Path) -> None:
    write(tmp_path / "proc" / "pressure" / "cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n")
    group = tmp_path / "group"
    write(group / "memory.current", "1000\n")
    write(group / "memory.max", "4000\n")
    write(group / "cpu.max", "150000 100000\n")
    write(group / "cpu.stat", "usage_usec 5\nthrottled_usec 3000000\n")
    write(group / "memory.events", "low 0\noom 1\noom_kill 2\n")

    found = read(NodeReader(tmp_path / "proc", group))

    assert found["pressure_cpu"] == 2.5
    assert "pressure_io" not in found
    assert {name: value for name, value in found.items() if name.startswith("cgroup")} == {
        "cgroup_memory": 1000,
        "cgroup_memory_limit": 4000,
        "cgroup_cpu_limit": 1.5,
        "cgroup_throttled": 3.0,
        "cgroup_oom_kills": 2,
    }


def test_a_group_without_limits_has_none(tmp_path: Path) -> None:
    write(tmp_path / "memory.max", "max\n")
    write(tmp_path / "cpu.max", "max 100000\n")

    assert not {"cgroup_memory_limit", "cgroup_cpu_limit"} & set(read(NodeReader(control_group=tmp_path)))


def test_the_control_group_is_found_by_the_process_file_system(tmp_path: Path) -> None:
    write(tmp_path / "proc" / "self" / "cgroup", "0::/job/step\n")
    write(tmp_path / "root" / "job" / "step" / "cgroup.controllers", "")

    assert control_group_of(tmp_path / "proc", tmp_path / "root") == tmp_path / "root" / "job" / "step"
    assert control_group_of(tmp_path / "nowhere", tmp_path / "root") is None


def test_a_loop_stores_what_it_reads_with_its_tags_and_counts_what_it_misses() -> None:
    store = SampleStore(1e9, clock=time.time)
    gate = threading.Event()

    def read_slowly() -> Iterator[Reading]:
        yield Reading("m", 1.0, {"pid": "5"})
        gate.wait(DEADLINE_S)

    loop = ReadingLoop("slow", read_slowly, 0.05, store, {"host": "a"})
    loop.start()
    wait_until(lambda: loop.pace.begun_s is not None)
    begun_s = time.monotonic()
    wait_until(lambda: time.monotonic() - begun_s > 0.2)
    gate.set()
    wait_until(lambda: store.size().samples >= 2)
    loop.stop()

    assert store.series_keys() == [("m", (("host", "a"), ("pid", "5")))]
    assert loop.pace.missed >= 3


def test_a_loop_outlives_a_reading_that_fails() -> None:
    store = SampleStore(1e9, clock=time.time)
    asked = threading.Event()

    def fail() -> Iterator[Reading]:
        asked.set()
        raise RuntimeError("the device is gone")

    loop = ReadingLoop("failing", fail, 0.05, store, {})
    loop.start()
    assert asked.wait(DEADLINE_S)
    loop.stop()

    assert store.size().samples == 0
