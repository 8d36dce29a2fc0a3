"""The GPUs of this machine, for the tests that run on them."""

from __future__ import annotations

import importlib
import os
import warnings

import pytest

from laggard.collectors.device import GpuDevice, gpu_names

__all__ = ["real_gpus"]


def real_gpus() -> list[GpuDevice]:
    """Return the GPUs that CuPy finds here; skip the test where there is none."""
    try:
        with warnings.catch_warnings():  # what CuPy says of this machine's libraries is not what is tested
            warnings.simplefilter("ignore")
            importlib.import_module("cupy")
    except ImportError as error:
        pytest.skip(f"no real GPU can be used: {error}")
    names = gpu_names(os.environ)
    if not names:
        pytest.skip("CuPy finds no GPU here")
    return [GpuDevice(name, ordinal) for ordinal, name in enumerate(names)]
