"""A callback for Hugging Face's Trainer that keeps its checkpoints in State, and brings the newest back.

::

    checkpoints = Checkpoints()
    trainer = Trainer(model, args, callbacks=[checkpoints], ...)
    trainer.train(resume_from_checkpoint=checkpoints.newest(args))
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.state.mapping import State
from laggard.torch.reporting import StepReporter

_RANDOM_STATES = "rng_state*.pth"


class Checkpoints(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Copies each checkpoint that the Trainer writes to State, and reports steps, their time and their loss.

    The Trainer writes its folder where and when its arguments say (``save_steps``, ``output_dir``); here are kept the
    folder's files, as bytes, so the next launch finds them on any node.  The Trainer itself reads them, with
    ``weights_only``.  Each rank keeps the states of its random generators, rank 0 everything else, so models that are
    split over ranks are refused.
    """

    def __init__(self, *, keep: int = 2, name: str = "transformers") -> None:
        # How many checkpoints to keep in State; those in `output_dir` are the Trainer's (`save_total_limit`)
        self._keep = keep
        self._name = name  # prefix of their keys in State
        self._reporter: StepReporter | None = None

    def newest(self, args: TrainingArguments) -> str | None:
        """Write the newest checkpoint in State into the output folder, and return its path; None in the first launch.

        It replaces a folder of the same name, which may have been written in part.
        """
        _refuse_split_models(args)
        checkpoints = self._checkpointer(args)
        step = checkpoints.agreed_latest()
        if step is None:
            return None
        folder = _folder(args, step)
        with args.main_process_first(desc="checkpoint from State"):
            if args.local_process_index == 0:
                whole = checkpoints.restore(step, rank=0)
                own = folder.with_name(f".{args.process_index}-{folder.name}")
                shutil.rmtree(own, ignore_errors=True)
                own.mkdir(parents=True)
                for rank in range(whole["ranks"]):
                    shard = whole if rank == 0 else checkpoints.restore(step, rank=rank)
                    for name, content in shard["files"].items():
                        (own / name).parent.mkdir(parents=True, exist_ok=True)
                        (own / name).write_bytes(content)
                _put(own, folder)
        return str(folder)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Begin to report."""
        _refuse_split_models(args)
        self._reporter = StepReporter(args.process_index)
        self._reporter.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Report the step."""
        if self._reporter is not None:
            self._reporter.end(state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Report the loss that the Trainer logs."""
        if self._reporter is not None and "loss" in (logs := more.get("logs") or {}):
            self._reporter.add_loss(logs["loss"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Keep the checkpoint that the Trainer has just written."""
        if self._reporter is None:
            return
        folder = _folder(args, state.global_step)
        with self._reporter.saving(state.global_step):
            files = _files_of_rank(folder, args.process_index, args.world_size)
            shard = {"ranks": args.world_size, "files": {str(f.relative_to(folder)): f.read_bytes() for f in files}}
            self._checkpointer(args).save(state.global_step, shard)

    def _checkpointer(self, args: TrainingArguments) -> Checkpointer:
        return Checkpointer(
            State.current(), name=self._name, rank=args.process_index, ranks=args.world_size, keep=self._keep
        )


def _put(own: Path, folder: Path) -> None:
    """Give a folder its name; where nodes share the output folder, another one may have put the same there."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        own.rename(folder)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
        shutil.rmtree(own)


def _folder(args: TrainingArguments, step: int) -> Path:
    return Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")


def _files_of_rank(folder: Path, rank: int, ranks: int) -> list[Path]:
    own = folder / ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth")
    if rank > 0:
        return [own]
    return [file for file in folder.rglob("*") if file.is_file() and (file == own or not file.match(_RANDOM_STATES))]


def _refuse_split_models(args: TrainingArguments) -> None:
    if args.fsdp or args.deepspeed:
        kind = "DeepSpeed" if args.deepspeed else "FSDP"
        raise TypeError(f"checkpoints of {kind} cannot be kept in State; train without it, or keep them in files")
