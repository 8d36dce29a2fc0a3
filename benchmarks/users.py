"""Users: programs that keep one device busy, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.neighbour import compute, memory
from laggard.collectors.device import Device, GpuDevice

__all__ = ["USERS"]

LAYERS = 3
RATE = 1e-3
GPU_WIDTH = 4096  # of each layer, and samples in a batch
Step = Callable[[], object]


def training(device: Device) -> Step:
    """Train a three-layer perceptron by gradient descent, one batch per step, in single precision."""
    batch, width = (GPU_WIDTH, GPU_WIDTH) if isinstance(device, GpuDevice) else (256, 512)
    module: Any = device.array_module
    random = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return module.asarray((random.standard_normal(shape) / width**0.5).astype(np.float32))

    inputs, targets, weights = device.run(
        lambda: (normal(batch, width), normal(batch, width), [normal(width, width) for _ in range(LAYERS)])
    )

    def step() -> None:
        activations = [inputs]
        for weight in weights:
            activations.append(module.maximum(activations[-1] @ weight, 0))
        error = (activations[-1] - targets) / batch
        for layer in reversed(range(LAYERS)):
            error = error * (activations[layer + 1] > 0)
            gradient = activations[layer].T @ error
            error = error @ weights[layer].T
            weights[layer] -= RATE * gradient

    return lambda: device.run(step)


USERS: Mapping[str, Callable[[Device], Step]] = {
    "matrix products": lambda device: compute(device)[0],
    "memory": lambda device: memory(device)[0],
    "training": training,
}
"""For each name, the function that returns the step to repeat."""
