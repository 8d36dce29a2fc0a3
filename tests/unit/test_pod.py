"""What a container allows: processors, shared memory, and a last word to the operators of its cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from laggard.resilience.allocation.joined import JoinedAllocation, Pod
from laggard.resilience.allocation.machines import LEAST_SHARED_BYTES
from laggard.resilience.allocation.place import JoinSecret, Place
from laggard.resilience.controller.controller import ENDING_S, LAST_GRACE_S
from laggard.resilience.wire.handshake import Handshake
from laggard.system.processors import usable_processors
from laggard.system.termination_message import leave

GROUPS = "sys/fs/cgroup"


def machine(root: Path, group: str, **files: str) -> Path:
    """Return the root of a machine on which this process is in a control group, of which some files are given."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{group}\n")
    for name, text in files.items():
        path = root / GROUPS / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"cpu_max": "max 100000"}, 8),
        ({"cpu_max": "350000 100000"}, 3),
        ({"cpu_max": "20000 100000"}, 1),
        ({"cpu_max": "9000000 100000"}, 8),
        ({"cpu_max": "400000 100000", "pods__a__cpu_max": "600000 100000"}, 4),
        ({"cpu_max": "600000 100000", "pods__a__cpu_max": "200000 100000"}, 2),
        ({"cpu__cpu_cfs_quota_us": "250000", "cpu__cpu_cfs_period_us": "100000"}, 2),
        ({"cpu__cpu_cfs_quota_us": "-1", "cpu__cpu_cfs_period_us": "100000"}, 8),
    ],
)
def test_the_quota_of_a_container_limits_its_processors(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_processors(machine(tmp_path, "/pods/a", **files)) == count


def test_a_last_word_is_left_where_kubernetes_reads_it_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "termination-log"
    monkeypatch.setenv("LAGGARD_TERMINATION_MESSAGE", str(place))
    leave("gpu 3 is slow")
    assert not place.exists()
    place.touch()
    leave("")
    assert place.read_text() == ""
    leave("gpu 3 is slow" * 1000)
    assert place.read_text() == ("gpu 3 is slow" * 1000)[:4096]


def test_nodes_with_little_shared_memory_are_named() -> None:
    allocation = JoinedAllocation(Place(0, 3, "first", 1), "10.0.0.1", JoinSecret(b""), 1, 0.0)
    told: list[str] = []
    for node, size_bytes in zip(allocation.nodes, (LEAST_SHARED_BYTES, 64 << 20, 0), strict=True):
        allocation._learn(node.hostname, Handshake(4, (), node.hostname, size_bytes))
    allocation._tell_small(told.append)
    (line,) = told
    assert line.startswith("64 MiB of shared memory on index1, index2: NCCL, data loaders and checkpoints want more")
    assert allocation.ray_options(allocation.nodes[0]) == ["--num-gpus=1", "--num-cpus=4"]


def test_a_pod_that_is_told_to_end_lets_the_program_save_for_all_of_its_grace() -> None:
    assert Pod(60 + ENDING_S).time_to_save().grace_s(60, LAST_GRACE_S, ENDING_S) == 60
