"""Fine-tune a language model on several nodes with Hugging Face's Trainer; checkpoints outlive any one node.

    laggard --local-nodes=2 --virtual-gpus=1 --resilient --per-device examples/finetune.py --fail-at=15
    laggard --nodes=4 --idle=1 --resilient --per-device examples/finetune.py --model=gpt2 --steps=1000

Without --model it trains a tiny network, and downloads nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from laggard import Job
from laggard.torch.transformers import Checkpoints

TINY = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2)


class Sentences(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # mypy does not read PyTorch
    """Put your own tokens here: these count upwards."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = (torch.arange(32) + number) % 50
        return {"input_ids": tokens, "labels": tokens}


class Failing(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Has the last rank fail after a step: leave it out."""

    def __init__(self, step: int | None) -> None:
        self._step = step

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **more: Any) -> None:
        """Fail."""
        del control, more
        if state.global_step == self._step and args.process_index == args.world_size - 1:
            raise RuntimeError("NCCL error: unhandled system error")


parser = argparse.ArgumentParser(description="Fine-tune a language model on several nodes.")
parser.add_argument("--model", help="name or folder of a model (default: a tiny one)")
parser.add_argument("--steps", type=int, default=30, help="steps in all (default: %(default)s)")
parser.add_argument("--fail-at", type=int, metavar="STEP", help="where the last rank fails, in the first launch")
given = parser.parse_args()

torch.manual_seed(1)
job = Job.current()
args = TrainingArguments(
    output_dir="finetuned",
    max_steps=given.steps,
    per_device_train_batch_size=4,
    save_steps=10,
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
)
model = AutoModelForCausalLM.from_pretrained(given.model) if given.model else GPT2LMHeadModel(TINY)
checkpoints = Checkpoints()
newest = checkpoints.newest(args)
callbacks = [checkpoints, Failing(None if job.restarted else given.fail_at)]
if args.process_index == 0:
    print(f"launch {job.launch}: {args.world_size} ranks, from {newest or 'the beginning'}", flush=True)
result = Trainer(model, args, train_dataset=Sentences(), callbacks=callbacks).train(resume_from_checkpoint=newest)
if args.process_index == 0:
    print(f"done: {result.global_step} steps, loss {result.training_loss:.4f}", flush=True)
