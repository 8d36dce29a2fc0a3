"""Who meets whom by NCCL, what both ends are told, and what is said when one of them fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from laggard.collectors.boards import Board, Boards
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.links.prober import BURST_S
from laggard.collectors.links.reading import LinkReading
from laggard.resilience.command.doctor import as_text
from laggard.resilience.command.link_check import LinkCheck, variables_of_nccl
from laggard.resilience.command.link_lines import MAX_SHOWN, lines_on_nccl
from laggard.resilience.command.nccl_check import (
    FIRST_BYTES,
    MOST_BYTES,
    NcclCheck,
    NcclMeeting,
    Rails,
    check_nccl,
    meetings_of,
    rails_of,
)

CHECKED = {"gemm_fp32": [1e-3]}
GB = 10**9


# -- which GPUs --------------------------------------------------------------------------------------------------------


def test_a_gpu_has_the_number_of_its_place_and_may_send_if_its_probes_have_run() -> None:
    checks = {
        ("node1", "2"): DeviceCheck("2", seconds=CHECKED),
        ("node1", "3"): DeviceCheck("3", trouble="no answer"),
        ("node1", "5"): DeviceCheck("5", seconds=CHECKED),
        ("node2", "GPU-a"): DeviceCheck("GPU-a", seconds=CHECKED),
        ("node3", ALL_DEVICES): DeviceCheck(ALL_DEVICES, failure="no GPU found"),
        ("node4", "0"): DeviceCheck("0", model="virtual", seconds=CHECKED),
    }
    assert rails_of(checks, {}) == Rails({"node1": {0: "2", 2: "5"}, "node2": {0: "GPU-a"}})


def test_a_gpu_that_another_process_uses_is_left_out() -> None:
    checks = {("node1", str(gpu)): DeviceCheck(str(gpu), seconds=CHECKED, board=f"GPU-{gpu}") for gpu in range(2)}
    boards = {"node1": Boards((Board("H100", "GPU-0", processes=(4711,)), Board("H100", "GPU-1")))}
    rails = rails_of(checks, boards)
    assert rails == Rails({"node1": {1: "1"}}, ("node1 gpu 0",))
    assert check_nccl(nodes(1), rails, {}, 8).remarks == ["not measured beside other processes: node1 gpu 0"]


def test_a_board_comes_back_from_another_node_with_its_processes() -> None:
    board = Board("H100", "GPU-0", 18, ("a fault",), processes=(1, 2))
    assert Board.from_json(board.to_json()) == board


def test_a_gpu_meets_the_one_of_its_number() -> None:
    rails = Rails({"node1": {0: "2", 1: "3"}, "node2": {1: "1", 2: "2"}, "node3": {0: "0"}})
    assert meetings_of([("node1", "node2"), ("node2", "node3")], rails) == [
        NcclMeeting(1, (("node1", "3"), ("node2", "1")))
    ]


# -- the meetings ------------------------------------------------------------------------------------------------------


@dataclass
class Nodes:
    """Nodes that do as they are told, in no time.

    Attributes
    ----------
    versions
        Their versions of NCCL; None: it does not answer.
    rates
        Bytes per second that a GPU sends.
    trouble
        What keeps a GPU from a step, if anything does.
    steps
        What they were told, a list of commands by node and GPU.
    """

    versions: Mapping[str, int | None]
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    trouble: Callable[[str, str, Mapping[str, Any]], str] = lambda *_: ""
    steps: list[dict[tuple[str, str], dict[str, Any]]] = field(default_factory=list)

    def __call__(self, commands: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
        if all(each == {"nccl": "version"} for each in commands.values()):
            return {host: self._version(host) for host in commands}
        told = {
            (host, gpu): command for host, each in commands.items() for gpu, command in each["nccl"]["commands"].items()
        }
        self.steps.append(told)
        found: dict[str, dict[str, Any] | None] = {host: {"answers": {}, "failures": {}} for host in commands}
        for (host, gpu), command in told.items():
            answer = found[host]
            assert answer is not None
            if why := self.trouble(host, gpu, command):
                answer["failures"][gpu] = why
            else:
                answer["answers"][gpu] = self._answer(host, gpu, command)
        return found

    def _version(self, host: str) -> dict[str, Any] | None:
        version = self.versions[host]
        return None if version is None else {"version": version}

    def _answer(self, host: str, gpu: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if "rank" in command:
            return {"id": f"{host}/{gpu}" if command["rank"] == 0 else ""}
        if "id" in command:
            return {}
        return {"seconds": command["n_bytes"] / self.rates.get((host, gpu), 40e9)}


def rails_on(n_nodes: int, n_gpus: int) -> Rails:
    return Rails({f"node{number}": {gpu: str(gpu) for gpu in range(n_gpus)} for number in range(1, n_nodes + 1)})


def nodes(n_nodes: int, **settings: Any) -> Nodes:
    return Nodes({f"node{number}": 22703 for number in range(1, n_nodes + 1)}, **settings)


def test_every_gpu_sends_to_those_of_its_number_both_ways() -> None:
    found = check_nccl(nodes(4), rails_on(4, 2), {}, 8)
    ways = [(each.path, each.sender, each.receiver) for each in found.readings]
    assert len(ways) == len(set(ways)) == 2 * 4 * 3
    assert (found.failures, found.remarks) == ({}, [])


def test_a_reading_is_of_the_gpu_that_sent() -> None:
    found = check_nccl(nodes(4, rates={("node2", "1"): 4e9}), rails_on(4, 2), {}, 8)
    slow = {(each.path, each.sender) for each in found.readings if each.duration_s > 2 * each.n_bytes / 40e9}
    assert slow == {("gpu1", "node2")}
    assert sum(each.sender == "node2" for each in found.readings) == 2 * 3


def test_a_gpu_meets_so_many_others_at_most() -> None:
    found = check_nccl(nodes(12), rails_on(12, 1), {}, 3)
    assert len(found.readings) == 12 * 3


def test_both_ends_get_the_id_of_rank_0_and_rails_of_a_node_send_in_turn() -> None:
    told = nodes(2)
    check_nccl(told, rails_on(2, 2), {}, 8)
    begin, join, *bursts = told.steps
    assert begin == {(host, gpu): {"rank": host == "node2"} for host in ("node1", "node2") for gpu in "01"}
    assert join == {(host, gpu): {"id": f"node1/{gpu}"} for host in ("node1", "node2") for gpu in "01"}
    assert [{gpu for _, gpu in step} for step in bursts] == [{"0"}, {"1"}] * 2


@pytest.mark.parametrize(("rate", "n_bytes"), [(400e9, MOST_BYTES), (1e9, 32 << 20), (1e6, 256 << 10)])
def test_the_first_bursts_only_choose_the_number_of_bytes(rate: float, n_bytes: int) -> None:
    ends = {(f"node{number}", "0"): rate for number in (1, 2, 3)}
    told = nodes(3, rates=ends)
    found = check_nccl(told, rails_on(3, 1), {}, 8)
    sizes = [command["n_bytes"] for step in told.steps for command in step.values() if "n_bytes" in command]
    assert sizes == [FIRST_BYTES] * 2 + [n_bytes] * 6
    assert {each.n_bytes for each in found.readings} == {n_bytes}
    assert n_bytes in (MOST_BYTES, 256 << 10) or BURST_S / 2 < n_bytes / rate < 2 * BURST_S


def test_only_new_processes_get_the_variables() -> None:
    seen: list[object] = []

    def ask(commands: Mapping[str, Any], told: Nodes = nodes(2)) -> dict[str, dict[str, Any] | None]:  # noqa: B008
        seen.extend(each["nccl"]["environ"] for each in commands.values() if each["nccl"] != "version")
        return told(commands)

    check_nccl(ask, rails_on(2, 1), {"NCCL_SOCKET_IFNAME": "ib"}, 8)
    assert seen == [{"NCCL_SOCKET_IFNAME": "ib"}] * 2 + [None] * 6


@pytest.mark.parametrize("step", ["rank", "id", "n_bytes"])
def test_a_gpu_that_fails_in_a_step_is_named_and_the_others_go_on(step: str) -> None:
    told = nodes(3, trouble=lambda host, gpu, command: "broken" * (step in command and (host, gpu) == ("node2", "1")))
    found = check_nccl(told, rails_on(3, 2), {}, 8)
    assert {(each.path, each.sender, each.receiver) for each in found.readings} >= {
        *(("gpu0", one, other) for one in told.versions for other in told.versions if one != other),
        *(("gpu1", *ends) for ends in (("node1", "node3"), ("node3", "node1"))),
    }
    assert dict(found.failures) == {
        "gpu1: link node1 to node2": "node2: broken",
        "gpu1: link node2 to node3": "node2: broken",
    }
    assert len(found.readings) == 6 + 2


def test_of_two_ends_that_fail_both_reasons_are_told() -> None:
    found = check_nccl(nodes(2, trouble=lambda *_: "broken"), rails_on(2, 1), {}, 8)
    assert dict(found.failures) == {"gpu0: link node1 to node2": "node1: broken; node2: broken"}
    assert found.readings == []


def test_a_gpu_that_has_failed_with_three_others_holds_up_nobody_else() -> None:
    told = nodes(6, trouble=lambda host, *_: "no answer within 60 s" * (host == "node2"))
    found = check_nccl(told, rails_on(6, 1), {}, 8)
    assert sum(("node2", "0") in step for step in told.steps) == 3
    assert sorted(found.failures.values()) == sorted(
        ["node2: no answer within 60 s"] * 3 + ["left out, since node2 gpu 0 has failed with 3 others"] * 2
    )
    assert len(found.readings) == 5 * 4


def test_a_gpu_that_is_well_is_not_left_out_for_two_that_are_not() -> None:
    broken = {"node3", "node8"}  # which node6 meets first
    told = nodes(8, trouble=lambda host, *_: "broken" * (host in broken))
    found = check_nccl(told, rails_on(8, 1), {}, 8)
    assert len(found.readings) == 6 * 5


def test_a_node_that_is_gone_fails_its_meetings() -> None:
    told = nodes(3)

    def ask(commands: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
        found = told(commands)
        return {host: None if host == "node3" and len(told.steps) > 2 else answer for host, answer in found.items()}

    found = check_nccl(ask, rails_on(3, 1), {}, 8)
    assert set(found.failures.values()) == {"node3: no answer"}


@pytest.mark.parametrize(
    ("versions", "rails", "remarks", "measured"),
    [
        ((22703, 22703), rails_on(2, 1), [], 2),
        ((22703,), rails_on(1, 8), ["not measured: that takes GPUs of the same number on two nodes"], 0),
        ((), Rails({}), ["not measured: that takes GPUs of the same number on two nodes"], 0),
        (
            (22703, 22703),
            Rails({"node1": {0: "0"}, "node2": {1: "1"}}),
            ["not measured: that takes GPUs of the same number on two nodes"],
            0,
        ),
        (
            (0, 22703, 22703, 0),
            rails_on(4, 1),
            [
                "not measured on node1, node4: CuPy finds no NCCL there; "
                "pip install nvidia-nccl-cu12, or nvidia-nccl-cu13 with CUDA 13"
            ],
            2,
        ),
        ((22703, None, 22703), rails_on(3, 1), ["not measured on node2: no answer"], 2),
        (
            (22703, 21805, 22703),
            rails_on(3, 1),
            ["only measured between nodes of one version of NCCL: 2.27.3 on node1, node3; 2.18.5 on node2"],
            2,
        ),
    ],
)
def test_what_is_not_measured_is_said_in_a_line(
    versions: tuple[int | None, ...], rails: Rails, remarks: list[str], measured: int
) -> None:
    told = Nodes({f"node{number}": version for number, version in enumerate(versions, 1)})
    found = check_nccl(told, rails, {}, 8)
    assert (list(found.remarks), len(found.readings)) == (remarks, measured)


def test_nccls_variables_are_those_of_the_doctor_and_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    assert variables_of_nccl("").items() >= {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0"}.items()
    assert variables_of_nccl("=ib0")["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert "PATH" not in variables_of_nccl("")


# -- what is printed ---------------------------------------------------------------------------------------------------


def nccl_check_of(n_nodes: int, n_gpus: int, slow: Mapping[tuple[str, str], float]) -> NcclCheck:
    """Return a check of links of 40 GB/s, with a node's GPU some times as slow, as sender and as receiver."""
    names = [f"node{number}" for number in range(1, n_nodes + 1)]
    times = {
        (rail, a, b): max(slow.get((a, rail), 1.0), slow.get((b, rail), 1.0))
        for rail in (f"gpu{gpu}" for gpu in range(n_gpus))
        for a in names
        for b in names
        if a != b
    }
    return NcclCheck([LinkReading(0, a, b, x / 40, GB, 0.0, 0.0, rail) for (rail, a, b), x in times.items()])


@pytest.mark.parametrize(("n_nodes", "others"), [(3, "[1,3]"), (4, "[1,3-4]"), (9, "[1,3-9]")])
def test_a_slow_rail_of_a_node_is_told_with_its_partners_and_the_medians_of_all_rails(
    n_nodes: int, others: str
) -> None:
    *slow, last = lines_on_nccl(nccl_check_of(n_nodes, 8, {("node2", "gpu3"): 9.8}))
    assert sorted(slow) == [
        f"nccl gpu3: link node2 to node{others}: 4.08 GB/s, 9.8 times as slow as the median",
        f"nccl gpu3: link node{others} to node2: 4.08 GB/s, 9.8 times as slow as the median",
    ]
    assert last == f"nccl: {8 * n_nodes * (n_nodes - 1)} links measured: median 40 GB/s (gpu[0-7])"


def test_a_rail_that_is_slow_on_all_nodes_shows_in_the_medians() -> None:
    slow = {(f"node{number}", "gpu1"): 2.0 for number in (1, 2, 3)}
    assert lines_on_nccl(nccl_check_of(3, 3, slow)) == [
        "nccl: 18 links measured: median 40 GB/s (gpu0, gpu2), 20 GB/s (gpu1)"
    ]


def test_the_slowest_of_all_rails_come_first_and_at_most_ten_are_told() -> None:
    slow = {(f"node{number}", f"gpu{number}"): 2.0 + number for number in range(1, 8)}
    lines = lines_on_nccl(nccl_check_of(9, 8, slow))
    assert len(lines) == MAX_SHOWN + 2
    assert all(line.startswith("nccl gpu7: link ") and "node7" in line for line in lines[:2])
    assert lines[-2] == f"and {2 * 2 * 8} links more at least 1.1 times as slow"


def test_failures_and_remarks_come_first() -> None:
    failures = {f"gpu0: link node{number} to node99": "node99: no answer within 60 s" for number in range(12)}
    found = NcclCheck(nccl_check_of(2, 1, {}).readings, failures, ["not measured on node3: no answer"])
    lines = lines_on_nccl(found)
    assert lines[:2] == [
        "nccl: not measured on node3: no answer",
        "nccl gpu0: link node0 to node99: node99: no answer within 60 s",
    ]
    assert lines[-2:] == ["and 2 links more not measured by NCCL", "nccl: 2 links measured: median 40 GB/s (gpu0)"]
    assert lines_on_nccl(NcclCheck()) == []


def test_all_readings_are_in_the_json() -> None:
    links = LinkCheck(nccl=nccl_check_of(2, 1, {}))
    found = json.loads(as_text({}, {}, links, as_json=True))["nccl_links"]
    assert [(each["path"], each["sender"], each["receiver"]) for each in found] == [
        ("gpu0", "node1", "node2"),
        ("gpu0", "node2", "node1"),
    ]
    assert "nccl_links" not in json.loads(as_text({}, {}, as_json=True))
