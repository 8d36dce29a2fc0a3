"""Ray Train counts its steps in State: a lost node or a slow device costs a restart of its workers, and no step.

laggard --local-nodes=3 --nodes=3 --virtual-gpus=1 examples/ray_libraries/train.py --trouble=slow-device
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # TorchTrainer and the others build on it
from trouble import chosen, strike

from laggard import SlowGPUDetector, State, local_device
from laggard.ray_train import RayRestarts

WORKERS, STEPS = 2, 100


def train(config: dict[str, Any]) -> None:
    """Run one worker, from the step that State has."""
    state, device, rank = State.current(), local_device(), get_context().get_world_rank()
    matrix = np.ones((200, 200), dtype="float32")
    for step in range(state.get(f"step/{rank}", 0), STEPS):
        if step == STEPS // 4:
            strike(config["trouble"])
        device.run(lambda: matrix @ matrix)
        with state.transaction() as transaction:  # all or nothing
            transaction[f"step/{rank}"] = step + 1
            transaction.increment("steps")


def main() -> None:
    """Run the trainer."""
    trouble = chosen()
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"trouble": trouble},
        scaling_config=ScalingConfig(num_workers=WORKERS, use_gpu=True, placement_strategy="SPREAD"),
        run_config=RunConfig(
            storage_path=str(Path("ray_results").absolute()),
            callbacks=[RayRestarts(grace_s=0)],  # State has every step, so there is nothing to save
            failure_config=FailureConfig(
                max_failures=1 if trouble == "lost-node" else 0,
                max_preemption_failures=1 if trouble in ("slow-device", "preemption") else 0,
            ),
        ),
    )
    with SlowGPUDetector(1.0, restart_cost=0):
        trainer.fit()
    print(f"{State.current()['steps']} steps in all, {WORKERS} x {STEPS}: none lost, none twice")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
