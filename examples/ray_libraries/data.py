"""Ray Data's batches are counted in State: whatever Ray or laggard runs again, each batch counts once.

laggard --local-nodes=3 --nodes=2 --virtual-gpus=1 --resilient examples/ray_libraries/data.py --trouble=lost-node
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

import ray
from trouble import chosen, strike

from laggard import SlowGPUDetector, State, Transaction, local_device

BATCHES, ROWS = 40, 50


class Squares:
    """Sums the squares of batches of rows, on the device that Ray assigned."""

    def __init__(self, trouble: str | None) -> None:
        self._trouble, self._device, self._state = trouble, local_device(), State.current()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Sum one batch, and count it."""
        (number,) = (int(each) for each in batch["item"])
        if number >= BATCHES // 4:
            strike(self._trouble)
        rows = self._device.array_module.arange(number * ROWS, (number + 1) * ROWS)
        total = int(self._device.run(lambda: (rows**2).sum()))
        self._state.update_with(functools.partial(count, number, total))
        return {"item": [number]}


def count(number: int, total: int, transaction: Transaction) -> None:
    """Count a batch, unless it has counted already."""
    if f"batch/{number}" not in transaction:
        transaction[f"batch/{number}"] = total
        transaction.increment("sum", total)


def main() -> None:
    """Run the pipeline over the batches that State does not have."""
    trouble = chosen()
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    state = State.current()
    left = [number for number in range(BATCHES) if f"batch/{number}" not in state]
    with SlowGPUDetector(1.0, restart_cost=0):
        if left:
            rows = ray.data.from_items(left, override_num_blocks=len(left))
            pool = ray.data.ActorPoolStrategy(size=2)
            squares = rows.map_batches(Squares, fn_constructor_args=(trouble,), compute=pool, num_gpus=1, batch_size=1)
            squares.materialize()
    right = sum(number**2 for number in range(BATCHES * ROWS))
    print(f"the sum of squares is {state['sum']}, {'right' if state['sum'] == right else 'WRONG'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
