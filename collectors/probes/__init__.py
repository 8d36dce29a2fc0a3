"""Probes: short test kernels, each of which times one part of a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from laggard.collectors.cuda_errors import is_out_of_memory
from laggard.collectors.device import Device, GpuDevice
from laggard.collectors.errors import ProbeUnavailableError
from laggard.collectors.probes.base import Probe
from laggard.collectors.probes.gpu import GPU_PROBES
from laggard.collectors.probes.virtual import VIRTUAL_PROBES
from laggard.collectors.probes.workspace import Workspace

__all__ = ["GEMM_PROBE", "PROBE_NAMES", "WRONG", "Probe", "ProbeUnavailableError", "gemm_probe", "probes_of"]

_log = logging.getLogger("laggard.collectors")

PROBE_NAMES = tuple(GPU_PROBES)
GEMM_PROBE = "gemm_fp32"
WRONG = "wrong"  # the tag of samples that says which results were wrong


def probes_of(device: Device, names: Collection[str] = PROBE_NAMES) -> list[Probe]:
    """Return the probes with these names that a device can run."""
    # Each has been run once, because the first run includes loading and tuning the kernel.
    probes = []
    for name, make in _makers(device).items():
        if name in names:
            try:
                probes.append(_warm(make()))
            except Exception as reason:
                if not isinstance(reason, ProbeUnavailableError) and not is_out_of_memory(reason):
                    raise
                _log.info("the probe %s is left out on gpu %s: %s", name, device.gpu, reason)
    return probes


def gemm_probe(device: Device) -> Probe:
    """Return the probe that is closest to most programs' work: a matrix product in single precision."""
    return _warm(_makers(device)[GEMM_PROBE]())


def _makers(device: Device) -> Mapping[str, Callable[[], Probe]]:
    """Return a factory for each probe of this kind of device; the probes of a GPU share their memory."""
    if not isinstance(device, GpuDevice):
        return {name: partial(make, device) for name, make in VIRTUAL_PROBES.items()}
    workspace = Workspace(device)
    return {name: partial(make, workspace) for name, make in GPU_PROBES.items()}


def _warm(probe: Probe) -> Probe:
    probe.prepare()
    probe.warm_up()
    return probe
