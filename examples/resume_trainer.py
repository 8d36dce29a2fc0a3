"""Training with Hugging Face's Trainer whose checkpoints are kept in State, and resumed from after a relaunch.

    python examples/resume_trainer.py
    laggard --local-nodes=1 --resilient --per-node examples/resume_trainer.py --kill-at=25

With --kill-at the process is killed after that step in the first launch, and its output folder is removed, as if the
next launch ran on another node.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from laggard import Job
from laggard.torch.transformers import Checkpoints

OUTPUT = Path("trained")


class Words(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # mypy does not read PyTorch
    """Sentences of tokens, each the one after the last."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = (torch.arange(16) + number) % 50
        return {"input_ids": tokens, "labels": tokens}


class Printing(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Prints the loss, and has the process killed."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Print the loss."""
        del args, control
        if "loss" in more["logs"]:
            print(f"step {state.global_step}: loss {float(more['logs']['loss']):.4f}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Kill the process."""
        del args, control, more
        if state.global_step == self._kill_at:
            shutil.rmtree(OUTPUT)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="where the first launch is killed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    job = Job.current()
    args = TrainingArguments(
        output_dir=str(OUTPUT),
        max_steps=40,
        per_device_train_batch_size=4,
        save_steps=10,
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    checkpoints = Checkpoints()
    newest = checkpoints.newest(args)
    print(f"launch {job.launch}, resuming from {newest}", flush=True)
    printing = Printing(None if job.restarted else arguments.kill_at)
    trainer = Trainer(model, args, train_dataset=Words(), callbacks=[checkpoints, printing])
    trainer.train(resume_from_checkpoint=newest)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
