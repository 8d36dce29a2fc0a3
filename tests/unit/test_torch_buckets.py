"""How gradients are grouped, saved and laid out again: sums in another order differ in the last bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from laggard.torch import resume  # noqa: E402
from laggard.torch.buckets import Buckets, layout_of  # noqa: E402
from tests.local import begin_local_launch  # noqa: E402

N_LAYERS = 6


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def replicated(n_layers: int = N_LAYERS, **options: Any) -> Any:
    layers = [torch.nn.Linear(64, 64) for _ in range(n_layers)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02, **options)


def after_two_steps(model: Any) -> Any:
    for _ in range(2):
        model(torch.ones(2, 64)).sum().backward()
    return model


@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}], ids=str)
def test_a_new_process_has_the_layout_of_the_old_one(options: dict[str, Any]) -> None:
    saved = Buckets([after_two_steps(replicated(**options))]).state_dict()
    model = replicated(process_group=dist.new_group([0]), **options)
    reduced: list[Any] = []
    model.register_comm_hook(None, lambda _, bucket: (reduced.append(bucket), allreduce_hook(None, bucket))[1])  # type: ignore[func-returns-value]
    group = model.process_group
    assert [layout_of(model)] != saved
    Buckets([torch.nn.Sequential(model)]).load_state_dict(saved)
    assert [layout_of(model)] == saved
    assert model.process_group is group
    assert all(each.grad is not None for each in after_two_steps(model).parameters())
    assert len(reduced) == 2 * len(saved[0])


def test_the_layout_of_another_model_is_left_alone() -> None:
    saved = Buckets([after_two_steps(replicated())]).state_dict()
    model = replicated(N_LAYERS - 1)
    before = layout_of(model)
    Buckets([model]).load_state_dict(saved)
    assert layout_of(model) == before


def test_what_is_not_replicated_has_no_layout() -> None:
    assert Buckets([torch.nn.Linear(2, 2), object()]).state_dict() == []


def test_a_hook_whose_state_is_lost_at_a_relaunch_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin_local_launch(tmp_path / "state.db", "a run", monkeypatch)
    without, compressed = replicated(), replicated()
    without.register_comm_hook(dist.group.WORLD, allreduce_hook)
    compressed.register_comm_hook(PowerSGDState(dist.group.WORLD), powerSGD_hook)
    run = resume(torch.nn.Sequential(without, compressed), every=2)
    run.save(0)
    run.save(1)
    assert caplog.text.count("the state of powerSGD_hook is not saved") == 1
    assert "allreduce_hook" not in caplog.text
