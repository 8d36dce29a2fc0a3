"""Errors of collectors and detectors: one tree, of a standard kind each, and intact after pickling."""

from __future__ import annotations

import inspect
import logging
import math
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from laggard.collectors import errors
from laggard.collectors.group import ERROR, CollectorGroup, DeviceCollector
from laggard.detectors.errors import DetectorError, DeviceNameError, StateVersionError
from laggard.errors import LaggardError
from laggard.kvstore import NotInJobError
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.series.streams import Series
from tests.local import in_job

CASES = [
    (errors.NoDeviceError(), RuntimeError, "no GPU here: --virtual-gpus=K makes K virtual devices a node"),
    (
        errors.NoDeviceError(in_job=True),
        errors.DeviceError,
        "no node of this job has a GPU: --virtual-gpus=K makes K virtual devices a node",
    ),
    (errors.DeviceLostError("3", "GPU is lost"), errors.DeviceError, "gpu 3: GPU is lost"),
    (errors.ProbeUnavailableError("3", "has no peer"), RuntimeError, "gpu 3 has no peer"),
    (
        errors.DriverUnavailableError("3", "Driver Not Loaded"),
        OSError,
        "the driver gives no information on gpu 3: Driver Not Loaded",
    ),
    (
        errors.CupyMissingError("No module named 'cupy'"),
        ImportError,
        "GPUs are probed with CuPy (No module named 'cupy'): pip install 'laggard[cuda12]', or [cuda13], or [rocm]",
    ),
    (errors.RayMissingError(), ImportError, "Ray is not installed: pip install 'laggard[ray]'"),
    (
        errors.RayMissingError("2.50.1", "use --per-node"),
        ImportError,
        "Ray 2.50.1 is too old, the oldest that works is 2.55: pip install 'laggard[ray]', or use --per-node",
    ),
    (
        errors.NoInterfaceError("ib0", ["eth0", "lo"]),
        LookupError,
        "no network interface fits --link-interface=ib0: there are eth0, lo",
    ),
    (errors.UnknownNodeError("node4", "10.0.0.4"), LookupError, "Ray has no node node4 at 10.0.0.4"),
    (
        errors.NoClusterError(),
        NotInJobError,
        "this job has no Ray: with --per-node, use --detect in place of a detector in the program",
    ),
    (
        DeviceNameError("rank3"),
        ValueError,
        "'rank3' names no device: use (host, gpu), two texts, for instance ('node1', '0')",
    ),
    (StateVersionError(1, 2), ValueError, "state has version 1, this program reads version 2"),
]


@pytest.mark.parametrize(("error", "kind", "message"), CASES, ids=[type(case[0]).__name__ for case in CASES])
def test_an_error_is_of_a_standard_kind_and_survives_pickling(
    error: LaggardError, kind: type[Exception], message: str
) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert isinstance(copy, type(error))
    assert isinstance(copy, LaggardError)
    assert isinstance(copy, kind)
    assert str(copy) == str(error) == message
    assert vars(copy) == vars(error)


def test_the_tree_has_no_error_without_a_case() -> None:
    leaves = {
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, LaggardError) and not each.__subclasses__()
    }
    assert leaves | {DeviceNameError, StateVersionError} == {type(error) for error, _, _ in CASES}
    assert issubclass(StateVersionError, DetectorError)


class Unspeakable(Exception):  # noqa: N818
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise RecursionError


class Returning(CollectorGroup):
    """A user's test that returns or raises what it is given."""

    metric_name = "own"

    def collector_test(self, args: Any) -> float:
        if isinstance(args, Exception):
            raise args
        return args  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("given", "value", "reason"),
    [
        (np.float32(0.5), 0.5, None),
        (2, 2.0, None),
        (None, math.nan, "TypeError: float() argument must be a string or a real number, not 'NoneType'"),
        ("fast", math.nan, "ValueError: could not convert string to float: 'fast'"),
        (OSError("a\udcff\nb"), math.nan, "OSError: a? b"),
        (Unspeakable(), math.nan, "Unspeakable"),
    ],
    ids=["single precision", "whole", "none", "text", "no text", "unspeakable"],
)
def test_what_a_users_test_returns_or_raises_becomes_a_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Any, value: float, reason: str | None
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "laggard.collectors")  # pytest cannot pass on what is no text
    endpoint = Endpoint("127.0.0.1", 1, "job", "secret")
    with in_job(tmp_path, endpoint):
        sample = DeviceCollector(Returning(collector_args=given), None, time.monotonic).collect()
    assert sample.values == pytest.approx((value,), nan_ok=True)
    assert sample.tags.get(ERROR) == reason
    to_add, _ = Series(endpoint.connect(), endpoint, 0).commands([sample])
    assert orjson.loads(str(to_add[-1]))[1] == [None if math.isnan(value) else value]
