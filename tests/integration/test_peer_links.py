"""Links between GPUs, with stand-ins for CuPy and for the driver's NVML, in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.device_check import DeviceCheck
from laggard.collectors.supervised_check import peers_here
from tests.integration.fake_driver import answer_of
from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0

# Two rounds, and what is said of them; with small buffers, since the stand-in really copies.
TWO_ROUNDS = """
import json, sys
from tests.fake_cupy.machine import Board, install

count = int(sys.argv[1])
install(*(Board(peers=frozenset(range(count)) - {number}) for number in range(count)))

from laggard.collectors.links import peer_copies
from laggard.collectors.links.peer_collector import NodePeers
from laggard.collectors.links.peer_copies import gpus_here

peer_copies.BUFFER_BYTES = 64 << 10
node = NodePeers(gpus_here())
node.run()
_, report = node.run()
print(json.dumps([{f"{each.sender}-{each.receiver}": each.path for each in report.readings}, report.causes]))
"""


def two_rounds(library: Path, count: int, **settings: str) -> tuple[dict[str, str], dict[str, Any]]:
    paths, causes = answer_of(library, TWO_ROUNDS, str(count), FAKE_NVML_COUNT=str(count), **settings)
    return paths, causes


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "NVLink and its switches"),
        ({"FAKE_NVML_PAIRED": "1"}, "2 NVLinks"),
        ({"FAKE_NVML_LINKS": "0"}, "both sockets"),
    ],
)
def test_the_driver_says_what_joins_two_gpus(fake_nvml: Path, settings: dict[str, str], path: str) -> None:
    assert two_rounds(fake_nvml, 2, **settings)[0] == {"0-1": path, "1-0": path}


def test_bridges_join_some_gpus_and_the_bus_joins_all(fake_nvml: Path) -> None:
    paths, _ = two_rounds(fake_nvml, 4, FAKE_NVML_PAIRED="1")
    assert {way for way, path in paths.items() if path == "2 NVLinks"} == {"0-1", "1-0", "2-3", "3-2"}
    assert {path for way, path in paths.items() if way not in {"0-1", "1-0", "2-3", "3-2"}} == {"both sockets"}


def test_a_link_that_counts_errors_is_named(fake_nvml: Path) -> None:
    _, causes = two_rounds(fake_nvml, 3, FAKE_NVML_FLAWED="2")
    assert causes == {"2": {"NVLink": "NVLink: link 1 had 1 replay"}}


def test_a_link_that_is_down_is_named(fake_nvml: Path) -> None:
    _, causes = two_rounds(fake_nvml, 2, FAKE_NVML_LINK="1")
    assert causes == {"1": {"NVLink": "NVLink: link 1 is down"}}


def test_the_width_of_the_bus_counts_only_if_the_copies_used_the_bus(fake_nvml: Path) -> None:
    narrow = {"FAKE_NVML_SLOT": "1", "FAKE_NVML_LINKS": "0"}
    _, causes = two_rounds(fake_nvml, 2, **narrow)
    assert causes == {"1": {"PCIe": "PCIe: the link's width is 8, but 16 is possible"}}
    assert two_rounds(fake_nvml, 2, FAKE_NVML_SLOT="1")[1] == {}


# A machine on which GPU 1 sends at a quarter of the rate; with small buffers, since the stand-in really copies.
TWO_GPUS = """
from tests.fake_cupy.machine import Board, install
install(Board(peers=frozenset({1})), Board(peers=frozenset({0}), rate_to={0: 1e11}))
from laggard.collectors.links import peer_copies
peer_copies.BUFFER_BYTES = 1 << 20
"""


def test_a_job_on_one_node_reports_which_of_its_gpus_is_slow_to_which(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text(TWO_GPUS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), *sys.path]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    job = start_job("--local-nodes=1", "--per-node", "--detect=slow-link", "--detect-interval=0.5", "sleep", "1000")

    job.wait_for(r"peer-links: \S+ gpu 1 to 0: \S+ times .* either end may be at fault")
    assert "verdict" not in job.account


THREE_GPUS = """
from tests.fake_cupy.machine import Board, install
install(*(Board(peers=frozenset(range(3)) - {number}) for number in range(2)), Board(stuck=True))
from laggard.collectors.links import peer_copies
peer_copies.BUFFER_BYTES = 1 << 20
"""


def on_three_gpus(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "cupy.py").write_text(THREE_GPUS)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {"PYTHONPATH": path}


def test_the_doctor_copies_between_the_gpus_that_answer(tmp_path: Path) -> None:
    seconds = {"gemm_fp32": [1e-3]}
    checks = [DeviceCheck("0", seconds=seconds), DeviceCheck("1", seconds=seconds), DeviceCheck("2", trouble="stuck")]
    found = peers_here(on_three_gpus(tmp_path), checks)
    assert (sorted((each.sender, each.receiver) for each in found.peers), found.failure) == (
        [("0", "1"), ("1", "0")],
        "",
    )


def test_a_copy_that_never_ends_holds_the_doctor_up_no_longer_than_the_deadline(tmp_path: Path) -> None:
    seconds = {"gemm_fp32": [1e-3]}
    checks = [DeviceCheck("0", seconds=seconds), DeviceCheck("2", seconds=seconds)]
    found = peers_here(on_three_gpus(tmp_path), checks, answer_s=5)
    assert (found.peers, found.failure) == ((), "no answer within 5 s")


def test_one_gpu_has_no_links_to_check() -> None:
    assert peers_here({}, [DeviceCheck("0", seconds={"gemm_fp32": [1e-3]})]).peers == ()
