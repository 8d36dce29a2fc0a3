"""What the callbacks for Lightning and for Hugging Face's Trainer report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laggard import Checkpointer, Job, State
from laggard.kvstore.control import NodeRecord
from tests.local import fresh_local_state

CALLS: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / "state.db"))
    monkeypatch.setattr(State, "current", lambda: fresh_local_state("run"))
    monkeypatch.setattr(Job, "current", lambda: Job(0, (NodeRecord("node1", "127.0.0.1", ()),), ()))
    CALLS.clear()
    for name in ("progress", "checkpointed"):
        monkeypatch.setattr(Job, name, lambda _, step, name=name: CALLS.append((name, step)))
    monkeypatch.setattr(Checkpointer, "save", lambda _, step, _tree: CALLS.append(("save", step)))


def test_lightnings_callback_reports_each_checkpoint_once_it_is_saved() -> None:
    lightning = pytest.importorskip("laggard.torch.lightning", reason="needs Lightning", exc_type=ImportError)
    checkpoints = lightning.Checkpoints(every=2)
    trainer = SimpleNamespace(
        global_step=0,
        global_rank=0,
        reload_dataloaders_every_n_epochs=0,
        fit_loop=SimpleNamespace(_data_fetcher=[], _combined_loader=SimpleNamespace(flattened=[])),
        strategy=SimpleNamespace(model=None),
        save_checkpoint=lambda path, **_: CALLS.append(("save", int(path.split("-")[-1]))),
    )
    checkpoints.on_train_start(trainer, None)
    for trainer.global_step in (1, 2, 3):
        checkpoints.on_train_batch_end(trainer, None, None, None, 0)
    assert CALLS == [("progress", 1), ("progress", 2), ("save", 2), ("checkpointed", 2), ("progress", 3)]


def test_the_trainers_callback_reports_each_checkpoint_once_it_is_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("laggard.torch.transformers", reason="needs transformers", exc_type=ImportError)
    checkpoints = transformers.Checkpoints()
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1, fsdp="", deepspeed=None)
    state = SimpleNamespace(global_step=20)
    checkpoints.on_train_begin(args, state, None)
    checkpoints.on_step_end(args, state, None)
    checkpoints.on_save(args, state, None)
    assert CALLS == [("progress", 20), ("save", 20), ("checkpointed", 20)]
