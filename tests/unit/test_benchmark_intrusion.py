"""What a probe round costs, and the neighbours and users on a GPU, with the stand-in for CuPy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import neighbour, probers, users
from benchmarks.intrusion import Cost
from benchmarks.lockstep import lost_in, lost_share
from benchmarks.neighbour import KINDS
from benchmarks.probers import INTERVAL, PROBERS, Rounds
from benchmarks.users import USERS
from laggard.collectors.device import GpuDevice
from tests.fake_cupy.kernels import host_compiler
from tests.fake_cupy.machine import Board, cupy_on

ON_THE_HOST = {"processor", "host memory"}


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """Return the board of a machine with small workloads."""
    if host_compiler() is None:
        pytest.skip("there is no C++ compiler")
    for module, name, small in (
        (neighbour, "GPU_MATRIX", 32),
        (neighbour, "GPU_ELEMENTS", 100),
        (neighbour, "GPU_COPY_BYTES", 100),
        (users, "GPU_WIDTH", 32),
        (probers, "TINY_S", 0.001),
        (probers, "TINY_EVERY_S", 0.001),
        (probers, "CALIBRATED_WITH", 3),
    ):
        monkeypatch.setattr(module, name, small)
    monkeypatch.setenv(INTERVAL, "0.001")
    on_it = Board()
    with cupy_on(on_it):
        yield on_it


@pytest.mark.parametrize("kind", [*KINDS, *PROBERS])
def test_a_neighbour_uses_the_gpu_unless_it_loads_the_host(board: Board, kind: str) -> None:
    works = {**KINDS, **PROBERS}[kind](GpuDevice("0", 0))
    before = len(board.log)
    for work in [*works, *works, *works]:  # a paced one naps first, then decides to work
        work()
    assert (len(board.log) > before) is (kind not in ON_THE_HOST)


@pytest.mark.parametrize("user", USERS)
def test_a_user_works_on_the_gpu_in_every_step(board: Board, user: str) -> None:
    step = USERS[user](GpuDevice("0", 0))
    for _ in range(3):
        before = len(board.log)
        step()
        assert len(board.log) > before


def test_the_interval_between_rounds_follows_from_their_cost(board: Board) -> None:
    rounds = Rounds(GpuDevice("0", 0), (), 0.001, max_intrusion=0.005)
    rounds.run()
    assert not rounds.run_if_due()  # its stopwatch is not running
    assert rounds.scheduled_s(3.0) >= 3.0
    assert rounds.scheduled_s(0.01) > 0.01
    assert board.log


def test_a_round_that_takes_a_tenth_of_the_time_costs_a_tenth_of_its_interval() -> None:
    cost = Cost(interval_s=0.3, scheduled_s=6.0, ratios=[1 / 0.9] * 3)
    assert cost.round_ms == pytest.approx(30.0)
    assert cost.intrusion == pytest.approx(0.005)
    assert cost.error == pytest.approx(0.0, abs=1e-12)


def test_blocks_that_differ_leave_the_cost_uncertain() -> None:
    assert Cost(1.0, 1.0, [1.0, 1 / 0.98]).error == pytest.approx(0.02, rel=1e-6)  # 1 % +- 1.4 %, of two blocks
    assert math.isnan(Cost(1.0, 1.0, [1.1]).error)


def test_ranks_that_wait_for_each_other_lose_what_one_device_does_if_all_are_probed_at_one_moment() -> None:
    assert lost_share(1, 0.02, common=False) == pytest.approx(0.005, rel=0.05)
    assert lost_share(512, 0.02, common=True) == pytest.approx(0.005, rel=0.1)


def test_at_moments_of_their_own_they_lose_the_more_the_more_there_are_and_the_shorter_the_steps() -> None:
    by_ranks = [lost_share(ranks, 0.02, common=False) for ranks in (1, 8, 64, 512)]
    by_step = [lost_share(64, step_s, common=False) for step_s in (1.0, 0.1, 0.02)]
    assert by_ranks == sorted(by_ranks)
    assert by_step == sorted(by_step)
    assert by_ranks[-1] > 0.1


def test_a_probe_beside_a_rank_that_waits_costs_nothing() -> None:
    """Two ranks and a step of the whole interval: the second probe ends within the delay by the first."""
    assert lost_share(2, 3.0, common=False) == pytest.approx(0.005, rel=0.05)


def test_what_probes_cost_is_by_how_much_the_steps_with_one_are_longer_than_the_others() -> None:
    durations_s = np.full(100, 0.02)
    durations_s[[10, 60]] = 0.035  # probed
    durations_s[30] = 0.5  # delayed by something else
    ends_s = np.concatenate([[0.0], durations_s]).cumsum()
    probes_s = np.array([[ends_s[10] + 0.01, ends_s[11] - 0.001], [ends_s[60] + 0.001, ends_s[61] - 0.001]])
    others_s = (durations_s.sum() - 0.07) / 98
    assert lost_in(ends_s, probes_s, 0.0, ends_s[-1]) == pytest.approx(2 * (0.035 - others_s) / durations_s.sum())


def test_a_span_without_a_probe_loses_nothing() -> None:
    ends_s = np.arange(100) * 0.02
    assert lost_in(ends_s, np.array([[1.0, 1.02]]), 0.0, 0.9) == 0.0
    assert lost_in(ends_s, np.empty((0, 2)), 0.0, 2.0) == 0.0
