"""Phases between two reported steps, with the signs that a node reads: which of them end as a hang, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from laggard.resilience.decision.hang import HangWatch, RankLife
from laggard.resilience.decision.stacks import Frame, RankStack, is_hang

SITE = "/opt/venv/lib/python3.12/site-packages"
N_RANKS = 4
EPOCH_S = 100
WAITS = (Frame("barrier", f"{SITE}/torch/distributed/distributed_c10d.py", 4818), Frame("train", "train.py", 50))
SPINS = (Frame("Barrier", f"{SITE}/mpi4py/MPI.py", 1), Frame("train", "train.py", 50))
READS_RESULT = (Frame("item", f"{SITE}/torch/_tensor.py", 10), Frame("validate", "train.py", 60))
COMPUTES = (Frame("validate", "train.py", 61),)
COMPILES = (Frame("compile_fx", f"{SITE}/torch/_inductor/compile_fx.py", 2000), Frame("train", "train.py", 40))
LOADS = (Frame("__next__", f"{SITE}/torch/utils/data/dataloader.py", 700), Frame("train", "train.py", 30))
SAVES = (Frame("save", f"{SITE}/torch/serialization.py", 900), Frame("checkpoint", "train.py", 70))

Looks = Callable[[int, float], tuple[RankLife, RankStack]]
"""How a rank looks, so many seconds after the last step."""


def looks(frames: tuple[Frame, ...], state: str = "S", *, seen: bool, active: bool, device: bool = False) -> Looks:
    """Every rank looks like this; it is ``seen`` to work from outside, and ``active`` while its stack is read."""

    def of(rank: int, silent_s: float) -> tuple[RankLife, RankStack]:
        life = RankLife(f"node{rank}", rank, state, 0.0 if seen else silent_s, 0.0, device)
        return life, RankStack(f"node{rank}", rank, rank, state, active=active, threads=(frames,))

    return of


def but_one(others: Looks, one: Looks) -> Looks:
    return lambda rank, silent_s: (others if rank else one)(rank, silent_s)


def ended_after_s(phase: Looks, *, lasts_s: int, n_steps: int = EPOCH_S) -> float | None:
    """Return how long after the last of its quick steps the job would be relaunched."""
    watch = HangWatch("auto", 0, 0.0)
    busy = looks(COMPUTES, "R", seen=True, active=True)
    for step in range(1, n_steps + 1):
        assert watch.check(step, [busy(rank, 0.0)[0] for rank in range(N_RANKS)], step) is None
    for silent_s in range(2, lasts_s, 2):
        ranks: Sequence[tuple[RankLife, RankStack]] = [phase(rank, silent_s) for rank in range(N_RANKS)]
        suspicion = watch.check(n_steps, [life for life, _ in ranks], n_steps + silent_s)
        lives, stacks = [life for life, _ in ranks], [stack for _, stack in ranks]
        if suspicion is not None and is_hang(suspicion, stacks, lives):
            return silent_s
    return None


WAITING = looks(WAITS, seen=False, active=False)
WAITING_ON_GPU = looks(WAITS, "R", seen=False, active=True, device=True)  # a processor spins, no memory is read
SPINNING = looks(SPINS, "R", seen=True, active=True)
WORKING = looks(COMPUTES, "R", seen=True, active=True)
WORKING_ON_GPU = looks(READS_RESULT, "R", seen=True, active=True, device=True)
COMPILING_FOR_GPU = looks(COMPILES, "R", seen=False, active=True, device=True)


@pytest.mark.parametrize(
    ("phase", "lasts_s", "n_steps"),
    [
        pytest.param(WORKING, 3000, EPOCH_S, id="validation"),
        pytest.param(WORKING_ON_GPU, 3000, EPOCH_S, id="validation on GPUs, whose results are waited for"),
        pytest.param(WORKING, 3000, 0, id="first compilation"),
        pytest.param(COMPILING_FOR_GPU, 3000, 0, id="first compilation for GPUs, which do nothing"),
        pytest.param(looks(COMPILES, "R", seen=True, active=True), 3000, EPOCH_S, id="compilation for a new shape"),
        pytest.param(COMPILING_FOR_GPU, 3000, EPOCH_S, id="compilation for a new shape, while the GPUs do nothing"),
        pytest.param(
            but_one(WAITING, looks(SAVES, "D", seen=True, active=True)), 580, EPOCH_S, id="one rank writes a checkpoint"
        ),
        pytest.param(
            but_one(WAITING_ON_GPU, looks(SAVES, "D", seen=True, active=True, device=True)),
            580,
            EPOCH_S,
            id="one rank writes a checkpoint while the others spin",
        ),
        pytest.param(looks(LOADS, seen=True, active=True), 3000, EPOCH_S, id="all load data"),
        pytest.param(but_one(WAITING, WORKING), 580, EPOCH_S, id="one rank evaluates"),
        pytest.param(but_one(WAITING_ON_GPU, WORKING_ON_GPU), 580, EPOCH_S, id="one rank evaluates, on GPUs"),
    ],
)
def test_a_job_that_works_at_full_speed_between_two_steps_goes_on(phase: Looks, lasts_s: int, n_steps: int) -> None:
    assert ended_after_s(phase, lasts_s=lasts_s, n_steps=n_steps) is None


@pytest.mark.parametrize(
    ("phase", "from_s", "to_s"),
    [
        pytest.param(WAITING, 60, 64, id="all wait"),
        pytest.param(WAITING_ON_GPU, 60, 64, id="all wait, on GPUs"),
        pytest.param(but_one(WAITING, looks(SAVES, "D", seen=False, active=False)), 60, 64, id="one cannot write"),
        pytest.param(but_one(WAITING, looks(LOADS, seen=False, active=False)), 60, 64, id="one cannot read"),
        pytest.param(but_one(WAITING, looks(COMPUTES, "T", seen=False, active=False)), 60, 64, id="one is stopped"),
        pytest.param(but_one(SPINNING, looks(LOADS, seen=False, active=False)), 600, 1300, id="one reads, others spin"),
        pytest.param(SPINNING, 600, 610, id="all spin in a collective"),
        pytest.param(but_one(WAITING, WORKING), 600, 1300, id="one loops"),
        pytest.param(WORKING, 3600, 7200, id="all loop"),
        pytest.param(WORKING_ON_GPU, 3600, 3610, id="all loop, on GPUs"),
    ],
)
def test_a_job_that_gets_nowhere_ends_in_bounded_time(phase: Looks, from_s: int, to_s: int) -> None:
    ended_s = ended_after_s(phase, lasts_s=10_000)
    assert ended_s is not None
    assert from_s < ended_s < to_s
