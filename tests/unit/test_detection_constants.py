"""The constants of the statistics, and when SciPy is loaded for them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from laggard.detectors.statistics.estimates import (
    center_and_spread,
    deviation_per_distance,
    median_and_deviation,
    onset_weight,
)


def test_the_shares_of_the_budget_sum_to_one_over_an_endless_run() -> None:
    rounds = np.arange(1, 200_001)
    first = sum(map(onset_weight, rounds.tolist()))
    rest = onset_weight(1) * 200_000.5**-0.1 / 0.1  # the integral of the later ones
    assert first + rest == pytest.approx(1.0, abs=1e-9)


def test_a_normal_sample_has_its_standard_deviation_by_either_estimate() -> None:
    assert deviation_per_distance() == pytest.approx(1.482602218505602)
    sample = np.random.default_rng(1).normal(0.0, 0.02, 100_000).astype(np.float32)
    _, spread = center_and_spread(sample, [slice(None)])
    assert spread[0] == pytest.approx(0.02, rel=0.02)
    _, deviation = median_and_deviation(sample[:, None])
    assert deviation[0] == pytest.approx(0.02, rel=0.02)


def test_neither_the_package_nor_a_verdict_loads_numpy_or_scipy() -> None:
    program = (
        "import sys, laggard, laggard.collectors.device, laggard.detectors.verdict\n"
        "light = {'numpy', 'scipy', 'pynvml', 'ray', 'cupy'} & set(sys.modules)\n"
        "import laggard.detectors.statistics.slow_gpu_analysis\n"
        "print(sorted(light), 'scipy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
