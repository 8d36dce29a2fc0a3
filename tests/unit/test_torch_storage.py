"""``torch.distributed.checkpoint`` with laggard as its storage, in one process."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: E402
from torch.distributed.checkpoint.planner import LoadPlan  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from laggard import Checkpointer, Job  # noqa: E402
from laggard.kvstore.control import NodeRecord  # noqa: E402
from laggard.kvstore.errors import NoCheckpointError, ReshardingError, UnsupportedValueError  # noqa: E402
from laggard.torch import CheckpointReader, CheckpointWriter, resume  # noqa: E402
from laggard.torch.training_state import on_host  # noqa: E402
from tests.local import begin_local_launch, fresh_local_state  # noqa: E402


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpointer:
    for name in [name for name in os.environ if name.startswith("LAGGARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / "state.db"))
    return Checkpointer(fresh_local_state(), name="dcp")


def save(checkpoints: Checkpointer, step: int, tree: dict[str, Any], **options: Any) -> None:
    dcp.save(tree, storage_writer=CheckpointWriter(checkpoints, step), **options)


def load(checkpoints: Checkpointer, step: int, tree: dict[str, Any], **options: Any) -> dict[str, Any]:
    dcp.load(tree, storage_reader=CheckpointReader(checkpoints, step), **options)
    return tree


DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "complex64", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (4, 3)])
def test_tensors_of_every_dtype_come_back(checkpoints: Checkpointer, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(torch.Size(shape).numel()).reshape(shape) % 3).to(getattr(torch, dtype))
    strided = tensor.t() if len(shape) == 2 else tensor
    save(checkpoints, 1, {"a": tensor, "b": {"c": strided}})

    found = load(checkpoints, 1, {"a": torch.zeros_like(tensor), "b": {"c": torch.zeros_like(strided)}})

    for new, old in [(found["a"], tensor), (found["b"]["c"], strided)]:
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (new, old)))


def test_tensors_of_a_device_that_overlap_there_overlap_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    memory = torch.arange(12)
    found = on_host({"part": memory[2:8], "all": memory, "rows": memory.view(3, 4), "again": memory[2:8]})
    found["all"][5] = -1
    assert [each.flatten().tolist() for each in found.values()] == [
        [2, 3, 4, -1, 6, 7],
        [*range(5), -1, *range(6, 12)],
        [*range(5), -1, *range(6, 12)],
        [2, 3, 4, -1, 6, 7],
    ]


def test_a_models_training_state_comes_back(checkpoints: Checkpointer) -> None:
    def training() -> tuple[Any, Any]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = training()
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    save(checkpoints, 3, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    again, _ = training()
    new = {"model": again.state_dict()}

    load(checkpoints, 3, new)

    assert all(torch.equal(value, model.state_dict()[name]) for name, value in new["model"].items())
    whole = {"optimizer": optimizer.state_dict()}
    moments = [state["exp_avg"].clone() for state in whole["optimizer"]["state"].values()]
    for state in whole["optimizer"]["state"].values():
        state["exp_avg"].zero_()
    load(checkpoints, 3, whole)
    assert all(
        torch.equal(state["exp_avg"], moment)
        for state, moment in zip(whole["optimizer"]["state"].values(), moments, strict=True)
    )


VALUES = [7, 1.5, None, True, "text" * 1000, b"bytes", [1, "a"], (1, (2,), OrderedDict(a=b"d"), {3: "c"}), 2**70]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_other_values_come_back_as_they_were(checkpoints: Checkpointer, value: object) -> None:
    save(checkpoints, 1, {"value": value, "tensor": torch.ones(1)})

    found = load(checkpoints, 1, {"value": "another", "tensor": torch.zeros(1)})

    assert found["value"] == value
    assert type(found["value"]) is type(value)


class Secret:
    """A value that only a pickle could hold."""


def test_what_only_a_pickle_could_hold_is_refused_by_name_and_the_checkpoint_before_stays(
    checkpoints: Checkpointer,
) -> None:
    save(checkpoints, 1, {"tensor": torch.ones(2)})

    with pytest.raises((dcp.CheckpointException, UnsupportedValueError), match=r"'extra\.secret'.*Secret"):
        save(checkpoints, 2, {"tensor": torch.zeros(2), "extra": {"secret": Secret()}})

    assert checkpoints.latest() == 1
    assert load(checkpoints, 1, {"tensor": torch.zeros(2)})["tensor"].tolist() == [1, 1]


def test_part_of_a_checkpoint_can_be_read(checkpoints: Checkpointer) -> None:
    save(checkpoints, 1, {"a": torch.ones(2), "b": torch.zeros(2)})

    found = load(
        checkpoints,
        1,
        {"a": torch.zeros(2), "new": torch.full((1,), 5)},
        planner=DefaultLoadPlanner(allow_partial_load=True),
    )

    assert found["a"].tolist() == [1, 1]
    assert found["new"].tolist() == [5]


def test_an_asynchronous_save_keeps_the_values_of_its_call(checkpoints: Checkpointer) -> None:
    tensor = torch.ones(1000)
    saved = dcp.async_save({"a": tensor}, storage_writer=CheckpointWriter(checkpoints, 1))
    tensor.zero_()
    saved.result(timeout=200)

    assert load(checkpoints, 1, {"a": torch.zeros(1000)})["a"].sum() == 1000


def test_the_newest_of_several_is_the_one_asked_for(checkpoints: Checkpointer) -> None:
    for step in (1, 2, 3):
        save(checkpoints, step, {"a": torch.full((2,), step)})

    assert checkpoints.latest() == 3
    assert [load(checkpoints, step, {"a": torch.zeros(2)})["a"][0] for step in (2, 3)] == [2, 3]


def test_a_path_is_refused(checkpoints: Checkpointer) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_id is '/data/1'; leave it out, and give the step to Checkpoint"):
        save(checkpoints, 1, {"a": torch.ones(1)}, checkpoint_id="/data/1")


def test_another_number_of_ranks_than_the_checkpointers_is_refused(checkpoints: Checkpointer) -> None:
    checkpoints.ranks = 2
    with pytest.raises(
        (dcp.CheckpointException, ValueError), match="1 ranks save a checkpoint of a Checkpointer with ranks=2"
    ):
        save(checkpoints, 1, {"a": torch.ones(1)})


def test_a_checkpoint_that_is_not_there_or_not_dcps_is_said_to_be(checkpoints: Checkpointer) -> None:
    with pytest.raises(NoCheckpointError, match="step 5"):
        CheckpointReader(checkpoints, 5)
    checkpoints.save(1, {"a": torch.ones(1)})
    with pytest.raises(dcp.CheckpointException, match=r"not saved by a CheckpointWriter; use Checkpointer\.restore"):
        load(checkpoints, 1, {"a": torch.zeros(1)})


def test_ranks_that_are_to_read_different_steps_are_refused(checkpoints: Checkpointer) -> None:
    save(checkpoints, 1, {"a": torch.ones(1)})
    reader = CheckpointReader(checkpoints, 1)
    plans = [LoadPlan([], storage_data=step) for step in (1, 2)]

    with pytest.raises(NoCheckpointError, match=r"the ranks are to read steps \[1, 2\]; give each the same one"):
        reader.prepare_global_plan(plans)


@pytest.mark.usefixtures("checkpoints")
def test_a_split_model_goes_on_and_one_with_other_layers_is_refused_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_local_launch(tmp_path / "state.db", "a run", monkeypatch)
    monkeypatch.setattr(Job, "current", lambda: Job(0, (NodeRecord("node1", "127.0.0.1", ()),), ()))

    def training(name: str) -> tuple[Any, Any]:
        model = torch.nn.Sequential(OrderedDict({name: torch.nn.Linear(3, 2)}))
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer

    model, optimizer = training("first")
    run = resume(model, optimizer)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    run.save(0)
    again, optimizer = training("first")

    assert resume(again, optimizer).step == 1
    assert torch.equal(again[0].weight.full_tensor(), model[0].weight.full_tensor())
    assert [state["step"].item() for state in optimizer.state.values()] == [1, 1]
    with pytest.raises(ReshardingError, match=r"model\.first\.weight cannot be resharded: .* is not in this launch"):
        resume(*training("second"))
