"""Peak rates of GPUs from their vendors' data sheets, and the shortest time a probe can take at these rates."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.collectors.probes import Probe

__all__ = ["PEAKS", "floor_s", "peaks_of"]

# Operations or bytes per second by probe: products without sparsity (half of the data sheets' tensor-core figures
# "with sparsity"), copies in one direction (half of the data sheets' figures for PCIe).
Peaks = Mapping[str, float]


def _peaks(*, fp64: float, fp32: float, tf32: float, fp16: float, memory: float, bus: float) -> Peaks:
    """Return the peaks by probe, given in Tflop/s and GB/s."""
    teraflops = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": fp16}
    gigabytes = {"triad": memory, "host_to_device": bus, "device_to_host": bus}
    return {
        **{f"gemm_{precision}": 1e12 * rate for precision, rate in teraflops.items()},
        **{probe: 1e9 * rate for probe, rate in gigabytes.items() if rate},
    }


# NVIDIA H100 Tensor Core GPU data sheet; double precision on the tensor cores.
_H100_SXM = _peaks(fp64=67, fp32=67, tf32=494.5, fp16=989.5, memory=3350, bus=64)
_H100_PCIE = _peaks(fp64=51, fp32=51, tf32=378, fp16=756.5, memory=2000, bus=64)
# NVIDIA H200 Tensor Core GPU data sheet.
_H200 = _peaks(fp64=67, fp32=67, tf32=494.5, fp16=989.5, memory=4800, bus=64)


# NVIDIA DGX B200 and HGX B200 data sheets, figures of one GPU.
_B200 = _peaks(fp64=37, fp32=75, tf32=1100, fp16=2250, memory=7700, bus=64)
# NVIDIA L40S data sheet; it has next to no double precision, which is not probed.
_L40S = _peaks(fp64=1.4, fp32=91.6, tf32=183, fp16=362, memory=864, bus=32)
# AMD Instinct MI300X data sheet; matrix cores.
_MI300X = _peaks(fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, memory=5300, bus=64)


def _a100(memory: float) -> Peaks:
    # NVIDIA A100 Tensor Core GPU data sheet.
    return _peaks(fp64=19.5, fp32=19.5, tf32=156, fp16=312, memory=memory, bus=32)


PEAKS: Mapping[str, Peaks] = {
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H200": _H200,
    "NVIDIA B200": _B200,
    "NVIDIA L40S": _L40S,
    "AMD Instinct MI300X": _MI300X,
    "NVIDIA A100-SXM4-40GB": _a100(1555),
    "NVIDIA A100-SXM4-80GB": _a100(2039),
    "NVIDIA A100-PCIE-40GB": _a100(1555),
    "NVIDIA A100 80GB PCIe": _a100(1935),
}
"""Peaks by the driver's name for the board."""


def peaks_of(model: str) -> Peaks:
    """Return the peaks of a device's model; empty if it is not in the table, or a partition of a GPU."""
    return PEAKS.get(model.split(", ")[0], {})


def floor_s(probe: Probe, peaks: Peaks) -> float | None:
    """Return the shortest seconds of a repeat, its work divided by the peak; ``None`` if the peak is not known."""
    name = "triad" if probe.name.startswith("triad") else probe.name  # its name may include a size
    if name not in peaks:
        return None
    work = probe.operations if name.startswith("gemm_") else probe.bytes_moved
    return work / peaks[name]
