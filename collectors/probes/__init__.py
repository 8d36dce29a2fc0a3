"""Probes: short test kernels, each for one part of a device."""

from __future__ import annotations

import logging

from collectors.device import Device, GpuDevice
from collectors.probes.base import Probe, ProbeUnavailableError
from collectors.probes.virtual import VIRTUAL_PROBES
from collectors.probes.virtual import Gemm as VirtualGemm

__all__ = ["Probe", "ProbeUnavailableError", "gemm_probe", "probes_of"]

_log = logging.getLogger("laggard.collectors")


def probes_of(device: Device) -> list[Probe]:
    """Return all probes that a device can run, each run once: the first time pays for loading and tuning the kernel.

    Raises
    ------
    ProbeUnavailableError
        If its memory is too short for any.
    """
    if not isinstance(device, GpuDevice):
        return [_warm(make(device)) for make in VIRTUAL_PROBES]
    from collectors.probes.gpu import GPU_PROBES, Workspace

    workspace = Workspace(device)
    probes = []
    for make_on_gpu in GPU_PROBES:
        try:
            probes.append(_warm(make_on_gpu(workspace)))
        except (ProbeUnavailableError, workspace.cupy.cuda.memory.OutOfMemoryError) as reason:
            _log.info("a probe is left out: %s", reason)
    return probes


def gemm_probe(device: Device) -> Probe:
    """Return the one probe that any program's work looks like: a matrix product in single precision."""
    if not isinstance(device, GpuDevice):
        return _warm(VirtualGemm(device))
    from collectors.probes.gpu import PRECISIONS, Gemm, Workspace

    (single,) = (precision for precision in PRECISIONS if precision.name == "fp32")
    return _warm(Gemm(Workspace(device), single))


def _warm(probe: Probe) -> Probe:
    probe.prepare()
    probe.seconds()
    return probe
