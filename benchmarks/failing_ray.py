"""The toy program of ``python -m benchmarks failures`` on Ray: one actor on each node, and a driver that steps them.

It does what ``failing_training.py`` does, whose faults it makes in an actor.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import ray

from benchmarks.failing_training import (
    FAULT,
    FAULT_STEP,
    NODE,
    SAVE_EVERY,
    STEP_S,
    fires,
    first_step,
    log,
    make_fault,
    save,
)
from laggard import Job, node_strategy


class Worker:
    """The part of a step that is done on one node."""

    def step(self, step: int) -> None:
        """Work for a moment; the fault is made here."""
        if step == FAULT_STEP and fires():
            make_fault()
        time.sleep(STEP_S)


def main() -> None:
    """Run the steps that are left, on all nodes at once."""
    ray.init(logging_level=logging.ERROR)
    log("starts0", os.getpid(), NODE)
    job = Job.current()
    actor: Any = ray.remote(num_cpus=0)(Worker)
    workers = [actor.options(scheduling_strategy=node_strategy(node)).remote() for node in job.nodes]
    for step in range(first_step(), FAULT["steps"]):
        ray.get([worker.step.remote(step) for worker in workers])
        log("steps", step, os.getpid())
        if (step + 1) % SAVE_EVERY == 0:
            save(step + 1)
        job.progress(step)


if __name__ == "__main__":
    main()
