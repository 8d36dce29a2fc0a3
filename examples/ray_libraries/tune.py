"""Ray Tune's trials count their steps in State: a relaunch resumes each of them where it was, and repeats none.

laggard --local-nodes=3 --nodes=2 --virtual-gpus=1 --resilient examples/ray_libraries/tune.py --trouble=lost-node
"""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from trouble import chosen, strike

from laggard import SlowGPUDetector, State, local_device

RATES, STEPS = (0.1, 0.2, 0.3, 0.4), 100


def descend(config: dict[str, Any], trouble: str | None) -> None:
    """Run one trial, from the step that State has."""
    state, device, rate = State.current(), local_device(), config["rate"]
    step, x = state.get(f"trial/{rate}", (0, 1.0))
    for done in range(step + 1, STEPS + 1):
        if done == STEPS // 4:
            strike(trouble)
        x = device.run(functools.partial(lambda x: float(x - rate * np.sign(x) * x**2), x))
        with state.transaction() as transaction:  # all or nothing
            transaction[f"trial/{rate}"] = (done, x)
            transaction.increment("steps")
    tune.report({"loss": x**2})


def main() -> None:
    """Run the tuner."""
    trouble = chosen()
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(descend, trouble=trouble), {"GPU": 1}),
        param_space={"rate": tune.grid_search(list(RATES))},
        run_config=tune.RunConfig(storage_path=str(Path("ray_results").absolute()), verbose=0),
    )
    with SlowGPUDetector(1.0, restart_cost=0):
        best = tuner.fit().get_best_result("loss", "min")
    print(f"the best rate is {best.config['rate'] if best.config else None}")
    print(f"{State.current()['steps']} steps in all, {len(RATES)} x {STEPS}: none lost, none twice")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
