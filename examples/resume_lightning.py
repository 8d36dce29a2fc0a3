"""Training with Lightning whose checkpoints are kept in State, and resumed from after a relaunch.

    python examples/resume_lightning.py
    laggard --local-nodes=1 --resilient --per-node examples/resume_lightning.py --kill-at=25

With --kill-at the process is killed after that step in the first launch; the next one goes on from the newest
checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from laggard import Job
from laggard.torch.lightning import Checkpoints


class Regression(LightningModule):  # type: ignore[misc]  # mypy does not read Lightning
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch."""
        del batch_idx
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.network(inputs), targets)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its scheduler."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Printing(Callback):  # type: ignore[misc]  # mypy does not read Lightning
    """Prints the loss of every tenth step, and has the process killed."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print the loss."""
        del pl_module, batch, batch_idx
        if trainer.global_step % 10 == 0:
            print(f"step {trainer.global_step}: loss {outputs['loss'].item():.9f}", flush=True)
        if trainer.global_step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="where the first launch is killed")
    arguments = parser.parse_args()
    seed_everything(1, verbose=False)
    torch.set_num_threads(1)
    inputs = torch.randn(80, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True)), batch_size=8)

    job = Job.current()
    checkpoints = Checkpoints(every=10)
    print(f"launch {job.launch}, resuming from {checkpoints.newest()}", flush=True)
    trainer = Trainer(
        max_steps=40,
        accelerator="cpu",
        callbacks=[checkpoints, Printing(None if job.restarted else arguments.kill_at)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), loader, ckpt_path=checkpoints.newest())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
