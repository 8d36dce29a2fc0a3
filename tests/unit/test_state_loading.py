"""How long to wait for a server that loads its log, what memory it gets, and how clients take its answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.server.loading import MESSAGE_INTERVAL_S, LoadingWatch
from laggard.system.memory import memory_available_bytes, memory_limit_bytes


def loading(loaded_bytes: int, total_bytes: int) -> dict[str, int]:
    return {"loading": 1, "loading_loaded_bytes": loaded_bytes, "loading_total_bytes": total_bytes}


def test_the_deadline_moves_with_each_step_and_not_without_one() -> None:
    watch = LoadingWatch(10.0, 0.0, lambda _: None)
    assert watch.deadline_s == 10
    watch.note(4.0, {})
    assert watch.deadline_s == 10
    watch.note(8.0, loading(1, 100))
    assert watch.deadline_s == 18
    watch.note(17.0, loading(1, 100))
    assert watch.deadline_s == 18
    watch.note(17.5, loading(2, 100))
    assert watch.deadline_s == 27.5


def test_the_user_hears_of_a_long_loading_now_and_then() -> None:
    told: list[str] = []
    watch = LoadingWatch(10.0, 0.0, told.append)
    for second in range(60):
        watch.note(float(second), loading(second * 10**9, 100 * 10**9))
    assert told[0] == "the server is loading its log: 5% of 100.00 GB, about 95 s left"
    assert len(told) == 1 + (59 - 5) // MESSAGE_INTERVAL_S


def system(root: Path, group: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       1000 kB\nMemFree: 3 kB\n")
    (root / "proc/self/cgroup").write_text(group)
    for folder, limit in limits.items():
        (root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / folder / "memory.max").write_text(limit)
    return root


@pytest.mark.parametrize(
    ("used", "cached", "expected"),
    [(5000, 0, 2000), (6000, 1500, 2500), (0, 0, 3072), (8000, 0, -1000)],
)
def test_what_is_left_is_that_of_the_machine_or_of_the_fullest_group(
    tmp_path: Path, used: int, cached: int, expected: int
) -> None:
    root = system(tmp_path, "0::/a/b\n", {"a/b": "max\n", "a": "7000\n"})
    (root / "proc/meminfo").write_text("MemTotal:       1000 kB\nMemAvailable: 3 kB\n")
    (root / "sys/fs/cgroup/a/memory.current").write_text(f"{used}\n")
    (root / "sys/fs/cgroup/a/memory.stat").write_text(f"anon 9\ninactive_file {cached}\nactive_file 0\n")
    assert memory_available_bytes(root) == expected


def test_what_is_left_is_also_that_of_a_group_of_the_first_version(tmp_path: Path) -> None:
    root = system(tmp_path, "4:memory:/a\n", {"memory": "max\n"})
    (root / "proc/meminfo").write_text("MemAvailable: 3 kB\n")
    assert memory_available_bytes(root) == 3072
    files = {
        "limit_in_bytes": "7000",
        "usage_in_bytes": "6500",
        "stat": "total_inactive_file 40\ntotal_active_file 2\n",
    }
    for name, content in files.items():
        (root / "sys/fs/cgroup/memory" / f"memory.{name}").write_text(content)
    assert memory_available_bytes(root) == 542


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 1_024_000),
        ({"a/b": "max\n"}, 1_024_000),
        ({"a/b": "5000\n"}, 5000),
        ({"a/b": "max\n", "a": "7000\n"}, 7000),
        ({"a/b": "9000\n", "a": "7000\n"}, 7000),
        ({"a/b": "9000000000\n"}, 1_024_000),
    ],
)
def test_the_memory_is_that_of_the_machine_or_of_the_smallest_group(
    tmp_path: Path, limits: dict[str, str], expected: int
) -> None:
    assert memory_limit_bytes(system(tmp_path, "0::/a/b\n", limits)) == expected


def test_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    root = system(tmp_path, "5:memory:/\n", {})
    (root / "sys/fs/cgroup/memory").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("4096\n")
    assert memory_limit_bytes(root) == 4096


def test_time_in_which_the_server_loads_does_not_count_against_a_retry() -> None:
    now_s = 0.0

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    def loading_for_a_minute() -> str:
        if now_s < 60:
            raise redis.BusyLoadingError("LOADING")
        if now_s < 60.5:
            raise redis.ConnectionError("cut")
        return "answer"

    policy = RetryPolicy(Endpoint("127.0.0.1", 1, "job", "secret"), 2.0, lambda: now_s, sleep)
    assert policy.call(loading_for_a_minute) == "answer"

    def gone() -> str:
        raise redis.ConnectionError("refused")

    with pytest.raises(StateUnavailableError):
        policy.call(gone)
    assert now_s < 65
