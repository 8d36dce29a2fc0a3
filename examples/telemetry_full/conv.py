"""The SciPy task: images filtered by workers that are spread over the nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.signal import convolve2d

__all__ = ["filter_image", "start_pool"]

FILTER_SIZE = 4


def start_pool(workers: int, processors: int) -> Any:
    """Start Ray's multiprocessing pool, its workers spread over the nodes; more of them than processors are threads."""
    from ray.util.multiprocessing import Pool

    processes = min(workers, processors)
    options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": math.ceil(workers / processes)}
    return Pool(processes, ray_remote_args=options)


def filter_image(job: tuple[int, int]) -> float:
    """Draw an image from a seed, ``(seed, size)``, filter it, and return the result's brightest pixel."""
    seed, size = job
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (size, size)).astype(float)
    return float(convolve2d(image, random.normal(size=(FILTER_SIZE, FILTER_SIZE)))[::5, ::5].max())
