"""Links between GPUs, with stand-ins for CuPy and for the driver's NVML, in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from laggard.collectors.device_check import DeviceCheck
from laggard.collectors.supervised_check import peers_here
from tests.integration.fake_driver import answer_of

ROOT = Path(__file__).parents[2]

PATHS = """
import json, sys
from itertools import combinations
from laggard.collectors.links.peer_copies import path_between

print(json.dumps([path_between(*pair) for pair in combinations(sys.argv[1:], 2)]))
"""


def paths(library: Path, count: int, **settings: str) -> list[str]:
    """What joins the pairs of so many GPUs, in the order of their numbers."""
    addresses = (f"0000:{number:02x}:00.0" for number in range(count))
    found: list[str] = answer_of(library, PATHS, *addresses, FAKE_NVML_COUNT=str(count), **settings)
    return found


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "NVLink and its switches"),
        ({"FAKE_NVML_PAIRED": "1"}, "2 NVLinks"),
        ({"FAKE_NVML_LINKS": "0"}, "both sockets"),
    ],
)
def test_the_driver_says_what_joins_two_gpus(fake_nvml: Path, settings: dict[str, str], path: str) -> None:
    assert paths(fake_nvml, 2, **settings) == [path]


def test_bridges_join_some_gpus_and_the_bus_joins_all(fake_nvml: Path) -> None:
    bridge, bus = "2 NVLinks", "both sockets"
    assert paths(fake_nvml, 4, FAKE_NVML_PAIRED="1") == [bridge, bus, bus, bus, bus, bridge]


THREE_GPUS = """
from tests.fake_cupy.machine import Board, install
install(*(Board(peers=frozenset(range(3)) - {number}) for number in range(2)), Board(stuck=True))
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
