"""Copies between the GPUs of a node: what is measured, and who is accused; on the stand-in for CuPy."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from unittest import mock

import pytest

from laggard.collectors.device import GpuDevice, local_devices
from laggard.collectors.links import nvlinks
from laggard.collectors.links.nvlinks import errors_of_links, foreign_share
from laggard.collectors.links.peer_collector import NodePeers, PeerLinkCollector, PeerReport
from laggard.collectors.links.peer_copies import BUFFER_BYTES, REPEATS, PeerCopies, gpus_here
from laggard.collectors.links.reading import LinkReading
from laggard.detectors.peer_link_analysis import BUSY_ROUNDS, LEARNED_ROUNDS, PeerLinkAnalysis
from laggard.detectors.peer_link_judge import PeerLinkJudge
from laggard.detectors.verdict import Verdict
from tests.fake_cupy.machine import Board, cupy_on
from tests.real_gpus import real_gpus

NVLINK_RATE = 400e9
N_ROUNDS = 30


def boards(count: int, rates: Mapping[tuple[int, int], float] | None = None) -> list[Board]:
    """GPUs that all reach each other at one rate, but for some ways."""
    found = [Board(peers=frozenset(range(count)) - {number}) for number in range(count)]
    for (sender, receiver), rate in (rates or {}).items():
        found[sender].rate_to[receiver] = rate
    return found


def gpus() -> list[GpuDevice]:
    return [device for device in local_devices({}) if isinstance(device, GpuDevice)]


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def pair(request: pytest.FixtureRequest) -> Iterator[list[GpuDevice]]:
    if request.param == "real":
        found = real_gpus()
        if len(found) < 2:
            pytest.skip("there is one GPU")
        yield found[:2]
        return
    with cupy_on(*boards(2)):
        yield gpus()


def test_both_ways_of_a_pair_are_timed(pair: list[GpuDevice]) -> None:
    one, other = (device.gpu for device in pair)
    found = PeerCopies(pair).run(1, [(one, other)])
    assert [(each.sender, each.receiver) for each in found.readings] == [(one, other), (other, one)]
    for each in found.readings:
        assert each.n_bytes % BUFFER_BYTES == 0
        assert 1e9 < each.n_bytes / each.duration_s < 2e12
    assert found.cost_s == pytest.approx(REPEATS * sum(each.duration_s for each in found.readings))


def test_a_slow_way_is_told_from_the_way_back() -> None:
    with cupy_on(*boards(2, {(0, 1): NVLINK_RATE / 4})):
        there, back = PeerCopies(gpus()).run(1, [("0", "1")]).readings
    assert there.n_bytes / there.duration_s == pytest.approx(NVLINK_RATE / 4)
    assert back.n_bytes / back.duration_s == pytest.approx(NVLINK_RATE)


def test_a_burst_takes_about_a_millisecond_and_never_less_than_one_copy() -> None:
    with cupy_on(*boards(3, {(0, 1): 10e9, (0, 2): 100e9})):
        copies = PeerCopies(gpus())
        assert [copies.run(1, [way]).readings[0].n_bytes // BUFFER_BYTES for way in (("0", "1"), ("0", "2"))] == [1, 3]
        assert copies.run(1, [("1", "2")]).readings[0].n_bytes // BUFFER_BYTES == 8


def test_gpus_that_do_not_reach_each_other_are_timed_by_way_of_the_host() -> None:
    with cupy_on(Board(), Board()):
        (there, _) = PeerCopies(gpus()).run(1, [("0", "1")]).readings
    assert there.n_bytes / there.duration_s == pytest.approx(25e9)


@pytest.mark.parametrize("side", ["sent_bytes", "received_bytes"])
def test_what_others_sent_meanwhile_is_seen_at_either_end(side: str) -> None:
    own_bytes = REPEATS * 8 * BUFFER_BYTES
    carried = [0.0, 1.58 * own_bytes] * 2
    with cupy_on(*boards(2)), mock.patch.object(nvlinks.NvLinks, side, side_effect=carried):
        readings = PeerCopies(gpus()).run(1, [("0", "1")]).readings
    assert [each.foreign_share for each in readings] == pytest.approx([0.5, 0.5])


def test_only_one_buffer_of_each_gpu_is_taken() -> None:
    machine = boards(4)
    with cupy_on(*machine):
        node = NodePeers(gpus())
        for _ in range(3):
            node.run()
    assert {board.peak_bytes for board in machine} == {BUFFER_BYTES}


@pytest.mark.parametrize(("count", "n_rounds"), [(2, 1), (3, 1), (4, 1), (8, 3)])
def test_all_pairs_are_measured_in_turn_and_a_gpu_in_three_of_a_round_at_most(count: int, n_rounds: int) -> None:
    with cupy_on(*boards(count)), mock.patch("laggard.collectors.links.peer_copies.BUFFER_BYTES", 64 << 10):
        node = NodePeers(gpus())
        rounds = [node.run()[1].readings for _ in range(n_rounds)]
    for found in rounds:
        senders = [each.sender for each in found]
        assert max(senders.count(gpu) for gpu in senders) <= 3
    seen = {(each.sender, each.receiver) for found in rounds for each in found}
    assert seen == set(permutations(map(str, range(count)), 2))


def test_the_collector_keeps_to_its_share_of_the_time_on_slow_paths() -> None:
    with cupy_on(*(Board() for _ in range(4))):
        collector = PeerLinkCollector(3.0, 0.005)
        with mock.patch.dict("os.environ", clear=True):
            fastest_s = collector.collector_test(None)
        report = PeerReport.of_tags(collector.sample_tags())
    assert len(report.readings) == 12
    assert fastest_s == min(each.duration_s for each in report.readings)
    cost_s = REPEATS * sum(each.duration_s for each in report.readings)
    assert collector.stride() == -(-1.25 * cost_s // (0.005 * 3.0)) > 1


@pytest.mark.parametrize("count", [0, 1])
def test_a_node_without_a_pair_of_gpus_has_nothing_to_say(count: int) -> None:
    with cupy_on(*boards(count)), mock.patch.dict("os.environ", clear=True):
        collector = PeerLinkCollector(3.0, 0.005)
        assert collector.collector_test(None) == 0
        assert PeerReport.of_tags(collector.sample_tags()).readings == []


def test_without_cupy_there_are_no_gpus_to_copy_between() -> None:
    with mock.patch.dict(sys.modules, {"cupy": None}), mock.patch.dict("os.environ", clear=True):
        assert gpus_here() == []


# -- who is accused ----------------------------------------------------------------------------------------------------


def judged(machine: list[Board], n_rounds: int = N_ROUNDS, noise: float = 0.01) -> tuple[list[Verdict], list[str]]:
    """Play rounds on these boards, with a little noise; return the verdicts and notices."""
    judge, draw = PeerLinkJudge(1e-4, 1.05), random.Random(7)
    verdicts, notices = [], []
    # The stand-in really copies, in virtual time: a small buffer tells the same.
    with cupy_on(*machine), mock.patch("laggard.collectors.links.peer_copies.BUFFER_BYTES", 64 << 10):
        node = NodePeers(gpus())
        for _ in range(n_rounds):
            found = [
                replace(each, duration_s=each.duration_s * draw.lognormvariate(0, noise))
                for each in node.run()[1].readings
            ]
            judge.note_device(("node1", ""), PeerReport(found).tags())
            verdicts += judge.judge({}, 0.0)
            notices += judge.take_notices()
    return verdicts, notices


def test_healthy_gpus_are_not_accused() -> None:
    assert judged(boards(8), 60) == ([], [])


def test_a_slow_pair_is_a_notice_and_neither_of_its_gpus_is_accused() -> None:
    verdicts, (notice,) = judged(boards(8, {(2, 5): NVLINK_RATE / 2, (5, 2): NVLINK_RATE / 2}))
    assert verdicts == []
    assert notice.startswith(("node1 gpu 2 to 5", "node1 gpu 5 to 2"))


def test_a_gpu_that_sends_slowly_to_all_others_is_reported_and_not_restarted_on() -> None:
    (verdict,), notices = judged(boards(8, {(3, other): NVLINK_RATE / 2 for other in range(8)}))
    assert (verdict.host, verdict.gpu, verdict.action, verdict.severity) == ("node1", "3", "report", "very slow")
    assert verdict.evidence.startswith("node1 gpu 3 sends 10")
    assert notices == []


def test_of_two_gpus_the_direction_is_told_and_none_is_accused() -> None:
    verdicts, (notice,) = judged(boards(2, {(1, 0): NVLINK_RATE / 4}))
    assert verdicts == []
    assert notice.startswith("node1 gpu 1 to 0: ")
    assert "either end may be at fault" in notice


def test_pairs_are_compared_with_those_that_the_same_joins() -> None:
    """Two bridges of NVLink, and the bus between them: the bus is no slow NVLink."""
    bus = {way: 20e9 for way in permutations(range(4), 2) if set(way) not in ({0, 1}, {2, 3})}
    with mock.patch("laggard.collectors.links.peer_copies.path_between", _bridges):
        assert judged(boards(4, bus)) == ([], [])


def _bridges(one: nvlinks.NvLinks, other: nvlinks.NvLinks) -> str:
    numbers = {int(links.bus_address[5:7]) for links in (one, other)}
    return "4 NVLinks" if numbers in ({0, 1}, {2, 3}) else "both sockets"


def reading(sender: str, receiver: str, foreign: float = 0.0) -> LinkReading:
    return LinkReading(1, sender, receiver, 1e-3, BUFFER_BYTES, 0.0, foreign, "NVLink and its switches")


def test_traffic_of_others_is_said_once_and_accuses_nobody() -> None:
    judge = PeerLinkJudge(1e-4, 1.05)
    notices = []
    for _ in range(2 * BUSY_ROUNDS):
        report = PeerReport([reading(*way, foreign=0.5) for way in permutations("012", 2)])
        judge.note_device(("node1", ""), report.tags())
        assert judge.judge({}, 0.0) == []
        notices += judge.take_notices()
    (notice,) = notices
    assert notice == "node1: other traffic on the links of its GPUs in 3 rounds in a row; they are not judged meanwhile"


def test_the_cause_is_the_newest_word_on_links_of_that_kind() -> None:
    judge = PeerLinkJudge(1e-4, 1.05)
    said = {"1": {"NVLink": "NVLink: link 4 had 7 CRC errors", "PCIe": "PCIe: 3 replays during the round"}}
    notices: list[str] = []
    for _ in range(N_ROUNDS):
        found = [reading(*way) for way in permutations("01", 2)]
        judge.note_device(("node1", ""), PeerReport([found[0], replace(found[1], duration_s=4e-3)], said).tags())
        judge.judge({}, 0.0)
        notices += judge.take_notices()
    (notice,) = notices
    assert notice.endswith("joined by NVLink and its switches; likely cause: gpu 1: NVLink: link 4 had 7 CRC errors")


def test_nothing_is_judged_before_what_is_usual_is_known() -> None:
    analysis = PeerLinkAnalysis(1e-4, 1.05)
    found = [reading(*way) for way in permutations("012", 2)]
    assert all(analysis.add_round(found) == [] for _ in range(LEARNED_ROUNDS))
    stranger = replace(reading("0", "1"), path="both sockets", duration_s=1.0)
    assert all(analysis.add_round([*found[1:], stranger]) == [] for _ in range(N_ROUNDS))


# -- what NVML says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.0, 1000.0, 0.0),
        (0.0, 1080.0, 0.0),  # headers
        (0.0, 1580.0, 0.5),
        (500.0, 700.0, 0.0),  # a counter that lags behind tells nothing
        (None, 1000.0, 0.0),
        (0.0, None, 0.0),
    ],
)
def test_what_others_carried_is_what_the_links_count_beyond_the_copies(
    before: float | None, after: float | None, expected: float
) -> None:
    assert foreign_share(before, after, 1000.0) == pytest.approx(expected)


def test_the_links_whose_errors_rose_are_named() -> None:
    before = {(0, "CRC error"): 3, (1, "CRC error"): 0, (1, "replay"): 5, (2, "recovery"): 1, (3, "replay"): 0}
    assert errors_of_links(before, before) == ""
    after = before | {(1, "CRC error"): 2, (1, "replay"): 6, (2, "recovery"): 4, (3, "replay"): 2}
    said = "NVLink: link 1 had 2 CRC errors, link 1 had 1 replay, link 2 had 3 recoveries"  # and no more than three
    assert errors_of_links(before, after) == said
    assert errors_of_links({(3, "replay"): 0}, after) == "NVLink: link 3 had 2 replays"
