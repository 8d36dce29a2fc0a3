"""Which checkpoint a training goes on from: as a table, and in trainings without a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard.kvstore.errors import DamagedCheckpointError, NoCheckpointError  # noqa: E402 - what follows needs PyTorch
from laggard.torch import resuming  # noqa: E402
from laggard.torch.choosing import Wish, candidates, first_intact, said, said_of_earlier_run  # noqa: E402
from tests.local import begin_local_launch  # noqa: E402


@pytest.mark.parametrize(
    ("wish", "is_relaunch", "tried"),
    [
        (Wish(), False, [30, 20, 10]),
        (Wish(), True, [30, 20, 10]),
        (Wish(step=20), False, [20]),
        (Wish(step=20), True, [30, 20, 10]),
        (Wish(fresh=True), False, []),
        (Wish(fresh=True), True, [30, 20, 10]),
    ],
)
def test_the_first_launch_does_as_the_program_says_and_its_relaunches_go_on(
    wish: Wish, is_relaunch: bool, tried: list[int]
) -> None:
    assert list(candidates(wish, [30, 20, 10], is_relaunch=is_relaunch)) == tried


def test_a_step_without_a_checkpoint_is_refused() -> None:
    with pytest.raises(NoCheckpointError, match=r"no checkpoint of step 25 .*complete ones: \[30, 20\]"):
        candidates(Wish(step=25), [30, 20], is_relaunch=False)


@given(st.lists(st.integers(0, 99), unique=True), st.sets(st.integers(0, 99)))
def test_the_first_that_is_intact_on_all_ranks_is_taken(steps: Sequence[int], damaged: set[int]) -> None:
    def read(step: int) -> tuple[str, str]:
        return f"content of {step}", f"rank 1: {step} is damaged" if step in damaged else ""

    intact = [step for step in steps if step not in damaged]
    if steps and not intact:
        with pytest.raises(DamagedCheckpointError, match=f"step {steps[0]} is damaged"):
            first_intact(steps, read)
        return
    chosen, wrong = first_intact(steps, read)
    assert chosen == ((intact[0], f"content of {intact[0]}") if intact else None)
    assert len(wrong) == (list(steps).index(intact[0]) if intact else 0)


@pytest.mark.parametrize(
    ("wish", "chosen", "wrong", "text"),
    [
        (Wish(), 30, [], ""),
        (Wish(), 20, ["rank 1: torn"], "the checkpoint of step 30 cannot be read (rank 1: torn); the training goes on"),
        (Wish(), 10, ["torn", "gone"], "the checkpoints of step 30, 20 cannot be read (torn; gone); the training goes"),
        (Wish(step=20), 20, [], "the checkpoint of step 30 is set aside, since step=20 was asked for; the training"),
        (
            Wish(fresh=True),
            None,
            [],
            "the training begins anew (fresh=True), and sets aside the checkpoints of step 30,",
        ),
    ],
)
def test_what_is_not_gone_on_from_is_named(wish: Wish, chosen: int | None, wrong: list[str], text: str) -> None:
    notice = said(wish, [30, 20, 10], chosen, wrong)
    assert notice.startswith(text)
    assert bool(notice) == bool(text)
    assert said(wish, [], None, []) == ""


def test_what_an_earlier_run_has_saved_is_named_with_its_arguments_and_the_way_to_begin_anew() -> None:
    assert said_of_earlier_run(40, "--steps=40", "--steps=60", Path("train.laggard-state.db")) == (
        "the training goes on from step 40, which an earlier run saved with other arguments (--steps=40); "
        "to begin anew: fresh=True, or delete train.laggard-state.db"
    )
    assert said_of_earlier_run(40, "", "", None) == (
        "the training goes on from step 40, which an earlier run saved; "
        "to begin anew: fresh=True, or take another --state-dir"
    )


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """Return what trains a model up to a step, in a run of its own, and returns it and where it began."""
    commands = iter(range(100))

    def run(until: int, *, size: int = 2, model: Any = None, restart: str = "", **options: Any) -> tuple[Any, int]:
        begin_local_launch(tmp_path / "state.db", restart or f"{next(commands)} 0", monkeypatch)
        model = torch.nn.Linear(size, 1) if model is None else model
        resumed = resuming.resume(model, **({"keep": 3} | options))
        for step in range(resumed.step, until):
            with torch.no_grad():
                model.weight.fill_(step + 1)
            resumed.save(step)
        return model, resumed.step

    return run


LARGE = 1 << 19  # elements: such a shard is a file


def newest_shard(folder: Path) -> Path:
    return max((folder / "state.db.shards").iterdir(), key=lambda file: file.stat().st_mtime_ns)


@pytest.mark.parametrize("damage", ["torn", "changed", "gone"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before_it(
    damage: str, train: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(3, size=LARGE)
    file = newest_shard(tmp_path)
    match damage:
        case "torn":
            file.write_bytes(file.read_bytes()[:-9000])
        case "changed":
            content = bytearray(file.read_bytes())
            content[100_000] ^= 1
            file.write_bytes(content)
        case "gone":
            file.unlink()
    model, step = train(2, size=LARGE)
    assert (step, model.weight[0, 0].item()) == (2, 2)
    assert caplog.text.count("the checkpoint of step 3 cannot be read (rank 0: ") == 1
    caplog.clear()
    assert train(4, size=LARGE)[1] == 2
    assert "cannot be read" not in caplog.text, "it was marked"
    assert train(4, size=LARGE)[1] == 4


def test_if_all_are_damaged_the_training_does_not_begin_anew(train: Callable[..., Any], tmp_path: Path) -> None:
    train(2, size=LARGE)
    for file in (tmp_path / "state.db.shards").iterdir():
        file.unlink()
    for _ in range(2):
        with pytest.raises(DamagedCheckpointError, match="the checkpoint of step 2 is damaged"):
            train(2, size=LARGE)
    assert train(1, size=LARGE, fresh=True)[1] == 0


def test_a_step_can_be_chosen_and_a_relaunch_goes_on_from_what_was_saved_since(train: Callable[..., Any]) -> None:
    train(3)
    assert train(2, step=2)[1] == 2
    assert train(2)[1] == 2, "the newer one is set aside"
    with pytest.raises(NoCheckpointError, match="no checkpoint of step 3"):
        train(3, step=3)
    assert train(4, step=1, restart="torchrun 0")[1] == 1
    assert train(4, step=1, restart="torchrun 1")[1] == 4


def test_a_training_can_begin_anew_and_a_relaunch_goes_on(
    train: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    train(2)
    assert train(1, fresh=True, restart="torchrun 0")[1] == 0
    assert "begins anew (fresh=True), and sets aside the checkpoints of step 2, 1" in caplog.text
    assert train(3, fresh=True, restart="torchrun 1")[1] == 1


def test_a_finished_run_says_what_it_found_and_how_to_begin_anew(
    train: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(2)
    assert caplog.text == ""
    assert train(2)[1] == 2
    anew = f"to begin anew: fresh=True, or delete {tmp_path / 'state.db'}"
    assert f"goes on from step 2, which an earlier run saved; {anew}" in caplog.text


class Adapted(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not imported for mypy
    """A model with a base that is not trained, as with LoRA."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = torch.nn.Parameter(torch.full((LARGE,), base), requires_grad=False)
        self.weight = torch.nn.Parameter(torch.zeros(2))


def test_weights_that_a_filter_leaves_out_are_not_saved_and_stay_as_the_program_has_made_them(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    train(2, model=Adapted(1.0), weights=lambda name: name != "base")
    assert not (tmp_path / "state.db.shards").exists(), "the large base is not saved"
    model, step = train(1, model=Adapted(5.0), weights=lambda name: name != "base")
    assert (step, model.weight.tolist(), model.base[0].item()) == (2, [2, 2], 5)


def test_a_checkpoint_of_another_model_is_refused_unless_the_program_says_that_it_may_differ(
    train: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    train(1, model=torch.nn.Linear(2, 1, bias=False))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        train(1)
    model, step = train(0, strict=False)
    assert (step, model.weight.tolist()) == (1, [[1, 1]])
    assert "the checkpoint has not: bias (strict=False)" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
