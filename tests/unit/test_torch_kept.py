"""What a rank keeps of its last two steps: what is its own, its batches, and the layout of its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard.torch.draws import Draws  # noqa: E402
from laggard.torch.kept_steps import Steps, _why_not  # noqa: E402
from laggard.torch.own_states import OwnStates  # noqa: E402
from laggard.torch.partner import partners  # noqa: E402


def test_what_a_rank_kept_of_its_last_two_steps_outlives_it(tmp_path: Path) -> None:
    states = OwnStates(tmp_path / "own")
    for step in range(5):
        assert states.put(step, bytes([step]) * step)
    after = OwnStates(tmp_path / "own")
    assert sorted(after.steps()) == [3, 4]
    assert [after.get(step) for step in (3, 4)] == [b"\3" * 3, b"\4" * 4]


@given(n_ranks=st.lists(st.integers(1, 9), min_size=2, max_size=12))
def test_unless_a_node_has_most_ranks_what_is_a_ranks_own_is_kept_on_another_node(n_ranks: list[int]) -> None:
    size = sum(n_ranks)
    assume(2 * max(n_ranks) <= size)
    node_of = [node for node, number in enumerate(n_ranks) for _ in range(number)]
    for rank in range(size):
        to, source = partners(rank, size)
        assert node_of[to] != node_of[rank]
        assert partners(source, size)[0] == rank


def test_what_was_being_written_counts_as_nothing(tmp_path: Path) -> None:
    states = OwnStates(tmp_path / "own")
    states.put(6, b"whole")
    states.put(7, b"cut off")
    with (tmp_path / "own").open("r+b") as file:
        content = file.read()
        file.seek(content.index(b"cut off"))
        file.write(b"other")
    assert OwnStates(tmp_path / "own").steps() == (6,)


def test_what_has_no_room_is_refused_and_what_was_there_stays(tmp_path: Path) -> None:
    states = OwnStates(tmp_path / "own")
    assert states.put(1, b"small")
    assert not states.put(3, b"x" * (1 << 20))
    assert states.steps() == (1,)


def numbers() -> Iterator[tuple[int, float]]:
    """Yield batches that take a random number each, as an augmentation does."""
    number = 0
    while True:
        yield number, float(torch.rand(()))
        number += 1


def test_batches_of_a_step_come_again_with_the_random_numbers_behind_them() -> None:
    torch.manual_seed(5)
    draws = Draws()
    batches = draws.through(numbers())
    draws.begin(0)
    steps = []
    for step in range(4):
        steps.append((next(batches), next(batches), float(torch.rand(()))))
        draws.begin(step + 1)
    begun = next(batches)  # of a step that fails
    draws.go_back(3)
    again = []
    for step in (3, 4):
        again.append((next(batches), next(batches), float(torch.rand(()))))
        draws.begin(step + 1)
    assert again[0] == steps[3]
    assert again[1][0] == begun
    assert again[1][1][0] == begun[0] + 1


def test_without_steps_nothing_is_kept() -> None:
    batches = Draws()
    assert [item[0] for item, _ in zip(batches.through(numbers()), range(3), strict=False)] == [0, 1, 2]
    assert not batches._kept


def test_steps_without_a_kept_group_are_run_once_each_and_their_errors_are_raised() -> None:
    seen = []
    for attempt in Steps(3).until(6):
        with attempt as step:
            seen.append(step)
    assert seen == [3, 4, 5]
    attempt = next(Steps(0).until(2))
    with pytest.raises(RuntimeError, match="connection closed"), attempt:
        raise RuntimeError("connection closed by peer")
    assert attempt.step == 0


def test_a_model_that_is_not_the_same_on_all_ranks_keeps_no_ranks() -> None:
    assert _why_not(torch.nn.Linear(2, 2), {}, has_others=False) == "its model is not in DistributedDataParallel"
