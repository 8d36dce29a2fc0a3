"""Copies between the GPUs of a node: what is measured, on the stand-in for CuPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import pytest

from laggard.collectors.device import GpuDevice, local_devices
from laggard.collectors.links.peer_copies import BUFFER_BYTES, PeerCopies, gpus_here
from tests.fake_cupy.machine import Board, cupy_on, no_cupy
from tests.real_gpus import real_gpus

NVLINK_RATE = 400e9


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
    found = PeerCopies(pair).run([(one, other)])
    assert [(each.sender, each.receiver) for each in found] == [(one, other), (other, one)]
    for each in found:
        assert each.n_bytes % BUFFER_BYTES == 0
        assert 1e9 < each.n_bytes / each.duration_s < 2e12


def test_a_slow_way_is_told_from_the_way_back() -> None:
    with cupy_on(*boards(2, {(0, 1): NVLINK_RATE / 4})):
        there, back = PeerCopies(gpus()).run([("0", "1")])
    assert there.n_bytes / there.duration_s == pytest.approx(NVLINK_RATE / 4)
    assert back.n_bytes / back.duration_s == pytest.approx(NVLINK_RATE)


def test_a_transfer_takes_about_a_millisecond_and_never_less_than_one_copy() -> None:
    with cupy_on(*boards(3, {(0, 1): 10e9, (0, 2): 100e9})):
        copies = PeerCopies(gpus())
        assert [copies.run([way])[0].n_bytes // BUFFER_BYTES for way in (("0", "1"), ("0", "2"))] == [1, 3]
        assert copies.run([("1", "2")])[0].n_bytes // BUFFER_BYTES == 8


def test_gpus_that_do_not_reach_each_other_are_timed_by_way_of_the_host() -> None:
    with cupy_on(Board(), Board()):
        (there, _) = PeerCopies(gpus()).run([("0", "1")])
    assert there.n_bytes / there.duration_s == pytest.approx(25e9)


def test_only_one_buffer_of_each_gpu_is_taken() -> None:
    machine = boards(3)
    with cupy_on(*machine):
        PeerCopies(gpus()).run(combinations("012", 2))
    assert {board.peak_bytes for board in machine} == {BUFFER_BYTES}


def test_without_cupy_there_are_no_gpus_to_copy_between() -> None:
    with no_cupy():
        assert gpus_here() == []
