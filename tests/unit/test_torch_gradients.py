"""Checkpoints in the middle of accumulating gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch

from laggard import State  # noqa: E402
from laggard.torch import gradients, resuming  # noqa: E402
from tests.local import begin_local_launch  # noqa: E402

N_STEPS = 14


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what begins a launch of a program without laggard, whose State has a name."""
    runs = iter(map(str, range(100)))
    return lambda state: begin_local_launch(tmp_path / state, next(runs), monkeypatch)


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def backward(model: Any, number: int) -> float:
    loss = model(torch.tensor([[1.0, number]])).square().mean()
    loss.backward()
    return float(loss.item())


@pytest.mark.parametrize(("accumulated", "every"), [(3, 1), (4, 3), (3, 2)])
@pytest.mark.parametrize("when", ["after", "before"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_training_that_is_killed_while_it_accumulates_has_the_losses_of_one_that_is_not(
    accumulated: int, every: int, when: str, set_to_none: bool, launch: Callable[[str], None]
) -> None:
    def train(state: str, until: int, losses: dict[int, float]) -> None:
        launch(state)
        model, optimizer = model_and_optimizer()
        run = resuming.resume(model, optimizer, every=every)
        for number in range(run.step, until):
            if when == "before" and number % accumulated == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            losses[number] = backward(model, number)
            if (number + 1) % accumulated == 0:
                optimizer.step()
                if when == "after":
                    optimizer.zero_grad(set_to_none=set_to_none)
            run.save(number)

    undisturbed: dict[int, float] = {}
    train("undisturbed", N_STEPS, undisturbed)
    disturbed: dict[int, float] = {}
    for until in (4, 8, 11, N_STEPS):
        train("disturbed", until, disturbed)
    assert disturbed == undisturbed


def saved_gradients() -> list[str]:
    """Return the names of the gradients in the newest checkpoint."""
    state = State.current()
    newest = max((key for key in state if key.startswith("torch/0/")), key=lambda key: int(key.split("/")[2]))
    return list(state[newest]["state"]["gradients"])


@pytest.mark.parametrize("clears", ["before", "after"])
def test_gradients_that_an_optimizer_has_used_are_not_saved(clears: str, launch: Callable[[str], None]) -> None:
    launch("state")
    model, optimizer = model_and_optimizer()
    run = resuming.resume(model, optimizer)
    for number in range(3):
        if clears == "before":
            optimizer.zero_grad()
        backward(model, number)
        optimizer.step()
        if clears == "after":
            optimizer.zero_grad()
        run.save(number)
        assert saved_gradients() == []
    backward(model, 3)
    run.save(3)
    assert saved_gradients() == ["weight", "bias"]


def test_a_step_that_a_scaler_leaves_out_is_left_out_after_a_kill_while_it_accumulates(
    launch: Callable[[str], None],
) -> None:
    for inputs in (1e3, 1.0):  # the gradients of the first are not finite
        launch("state")
        model, optimizer = model_and_optimizer()
        scaler = torch.amp.GradScaler("cpu", init_scale=float(2**127))
        run = resuming.resume(model, optimizer, scaler=scaler)
        before = model.weight.clone()
        loss = model(torch.tensor([[inputs, inputs]])).square().mean()
        scaler.scale(loss if run.step == 0 else loss * 2.0**-120).backward()
        run.save(run.step)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2**126


def test_those_of_another_model_whose_optimizer_takes_fewer_steps_are_saved(launch: Callable[[str], None]) -> None:
    def train(state: str, until: int, losses: dict[int, tuple[float, float]]) -> None:
        launch(state)
        model, optimizer = model_and_optimizer()
        other, others = model_and_optimizer()
        run = resuming.resume(model, optimizer, also={"other": other, "others": others})
        for number in range(run.step, until):
            losses[number] = backward(model, number), backward(other, number)
            optimizer.step()
            optimizer.zero_grad()
            if number % 3 == 2:
                others.step()
                others.zero_grad()
            run.save(number)

    undisturbed: dict[int, tuple[float, float]] = {}
    train("undisturbed", N_STEPS, undisturbed)
    disturbed: dict[int, tuple[float, float]] = {}
    for until in (2, 4, N_STEPS):
        train("disturbed", until, disturbed)
    assert disturbed == undisturbed


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_gradients_that_fully_shard_has_not_reduced_are_refused_and_others_are_found() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unused = gradients.UnusedGradients(model, {})
    for number in range(2):
        backward(model, number)
        assert len(unused.state_dict()) == 4
        optimizer.step()
        assert unused.state_dict() == {}
    model.set_requires_gradient_sync(False)
    backward(model, 2)
    with pytest.raises(ValueError, match=r"call save after the optimizer's step, or with set_requires_gradient_sync"):
        unused.state_dict()
    model.set_requires_gradient_sync(True)
    backward(model, 3)
    assert len(unused.state_dict()) == 4
