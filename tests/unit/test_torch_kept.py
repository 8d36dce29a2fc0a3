"""What a rank keeps of its last two steps: what is its own, its batches, and the layout of its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from laggard.torch.draws import Draws  # noqa: E402
from laggard.torch.kept_model import SplitModel, why_not  # noqa: E402
from laggard.torch.kept_steps import Steps  # noqa: E402
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
    assert why_not(torch.nn.Linear(2, 2), {}, has_others=False) == "its model is not in DistributedDataParallel"


@pytest.fixture
def rank_1_of_4() -> Iterator[None]:
    """Let this process be one of four whose collectives return what each has given."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def split(shape: tuple[int, ...]) -> Any:
    """Return a model that is split on a mesh."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    return model


@pytest.mark.parametrize(
    ("shape", "why", "alike"), [((2, 2), "", (1, 3)), ((4, 1), "", (0, 1, 2, 3)), ((4,), "in checkpoints alone", ())]
)
@pytest.mark.usefixtures("rank_1_of_4")
def test_a_split_model_keeps_its_ranks_if_others_have_the_same_part(
    shape: tuple[int, ...], why: str, alike: tuple[int, ...]
) -> None:
    model = split(shape)
    found = why_not(model, {}, has_others=False)
    assert found.endswith(why)
    assert bool(found) == bool(why)
    assert SplitModel(model).alike == alike


@pytest.mark.usefixtures("rank_1_of_4")
def test_what_each_rank_may_have_of_its_own_keeps_no_ranks() -> None:
    whole = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    assert why_not(whole, {}, has_others=False) == ""
    dist.new_group([0, 1])
    assert why_not(whole, {}, has_others=False) == "it has further process groups"
    model = split((2, 2))
    model.register_buffer("mean", torch.zeros(1))
    assert why_not(model, {}, has_others=False) == "its model is split, and its ranks have buffers of their own"


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.usefixtures("rank_1_of_4")
def test_a_split_model_goes_back_out_of_a_step_that_has_failed(place: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("connection closed by peer")

    def fail_later(_: object, inputs: tuple[Any]) -> None:
        inputs[0].register_hook(fail)

    def train(model: Any) -> list[torch.Tensor]:
        model(torch.ones(2, 4)).square().mean().backward()
        return [each.grad.to_local().clone() for each in model.parameters()]

    model = split((2, 2))
    expected = train(model)
    model.zero_grad(set_to_none=True)
    kept = SplitModel(model)
    layout = kept.rest(None)
    failing = model[1].register_forward_pre_hook(fail if place == "forward" else fail_later)
    with pytest.raises(RuntimeError, match="connection closed"):
        train(model)
    failing.remove()
    kept.go_back(layout)
    model.zero_grad(set_to_none=True)
    assert all(map(torch.equal, train(model), expected))
