"""What the doctor prints of the links between GPUs."""

from __future__ import annotations

import json
from itertools import permutations

from laggard.collectors.boards import Board, Boards
from laggard.collectors.device_check import DeviceCheck
from laggard.collectors.links.peer_check import PeerCheck
from laggard.collectors.links.reading import PeerReading
from laggard.collectors.supervised_check import NodeCheck
from laggard.records import plain, record_of
from laggard.resilience.command.gpu_links import lines_on_gpu_links

GB = 10**9


def reading(sender: str, receiver: str, path: str, gb_per_s: float) -> PeerReading:
    return PeerReading(sender, receiver, 1 / gb_per_s, GB, path)


def test_each_way_is_compared_with_those_of_its_kind_on_all_nodes() -> None:
    fast = [reading(*way, "4 NVLinks", 200) for way in permutations("01", 2)]
    bus = [reading(*way, "both sockets", 20) for way in permutations("02", 2)]
    slow = [reading("0", "1", "4 NVLinks", 200), reading("1", "0", "4 NVLinks", 80)]
    checks = {
        "node1": PeerCheck((*fast, *bus)),
        "node2": PeerCheck(tuple(slow)),
        "node3": PeerCheck(failure="no answer"),
    }
    assert lines_on_gpu_links(checks) == [
        "node3: links between GPUs: no answer",
        "node2 gpu 1 to 0: 80 GB/s (4 NVLinks), 2.5 times as slow as the median",
        "6 ways between GPUs measured: median 200 GB/s (4 NVLinks), 20 GB/s (both sockets)",
    ]


def test_without_pairs_nothing_is_said() -> None:
    assert lines_on_gpu_links({"node1": PeerCheck()}) == []


def test_a_check_comes_back_from_another_node_as_it_was() -> None:
    check = NodeCheck(
        (DeviceCheck("0", seconds={"triad": [1e-3]}, figures={"triad": (2.0, "GB/s")}),),
        Boards((Board("H100", "GPU-1", 18, ("a fault",)),), is_all=True),
        PeerCheck((reading("0", "1", "", 25),)),
    )
    assert record_of(NodeCheck, json.loads(json.dumps(plain(check)))) == check
