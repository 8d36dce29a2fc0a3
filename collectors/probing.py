"""Probing one device of a job: a matrix product in every round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import psutil

from laggard.collectors.causes import TEMPERATURE, UNKNOWN, UTILISATION, WARMED, cause_of
from laggard.collectors.device import Device, GpuDevice
from laggard.collectors.errors import DriverUnavailableError
from laggard.collectors.probe_schedule import Intrusion
from laggard.collectors.probes import WRONG, Probe, gemm_probe
from laggard.collectors.symptoms import SymptomReader, Symptoms
from laggard.kvstore.client.environment import ENDPOINT_FILE

WARM_UP_LIMIT_S = 0.2
_MPS = "nvidia-cuda-mps"


class WarmUp:
    """Raises the clock of an idle device."""

    def __init__(self, is_idle: Callable[[], bool], limit_s: float = WARM_UP_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._is_idle = is_idle  # tells whether the device's clock is as low as that of an idle device
        self._helps = True

    def __call__(self, probe: Probe) -> bool:
        """Run a probe until the clock has risen, for 0.2 s at most; return whether the clock was low."""
        # If the clock did not rise, something else keeps it low, and warming up is not tried again.
        if not self._helps or not self._is_idle():
            return False
        until_s = time.monotonic() + self._limit_s
        while time.monotonic() < until_s:
            probe.seconds()
            if not self._is_idle():
                return True
        self._helps = False
        return True


def symptom_reader(device: Device) -> SymptomReader | None:
    """Return a reader of the device's symptoms; None if no driver reports any."""
    if not isinstance(device, GpuDevice):
        return None
    try:
        return SymptomReader(device.bus_address)
    except DriverUnavailableError:
        return None  # an AMD device, or a driver without NVML


def is_of_this_job(pid: int) -> bool:
    """Tell whether a process belongs to the same job as this one; another user's never does."""
    try:
        process = psutil.Process(pid)
        if process.name().startswith(_MPS):  # it computes for all who share the device, us among them
            return True
        theirs = process.environ().get(ENDPOINT_FILE)
    except psutil.AccessDenied:
        return False
    except psutil.NoSuchProcess:
        return True  # it has ended, or runs outside our container: there is no process to blame
    return pid == os.getpid() or theirs == os.environ.get(ENDPOINT_FILE, "no job")


class Probing:
    """The matrix product on one device, and what its driver reports from round to round."""

    def __init__(
        self, device: Device, max_intrusion: float, reader_of: Callable[[Device], SymptomReader | None] = symptom_reader
    ) -> None:
        self._device = device  # the device to run on
        self.intrusion = Intrusion(max_intrusion)
        self._reader = reader = reader_of(device)
        self._utilisation: int | None = None
        self._status = reader.status() if reader else None  # after the last round
        self._warm_up = WarmUp(reader.is_idle) if reader else None
        self._warmed = self._multiplied = False
        self._wrong = ""
        self._waited = False  # in each repeat of the round

    @cached_property
    def product(self) -> Probe:
        """The matrix product."""
        return gemm_probe(self._device)

    def seconds(self) -> float:
        """Run the matrix product once; return its seconds. An idle device is warmed up before a round's first run."""
        if not self._multiplied:
            self._utilisation = None if self._reader is None else self._reader.utilisation()
            self._warmed = self._warm_up is not None and self._warm_up(self.product)
        seconds = self.product.seconds()
        self._waited = self.product.timing.waited and (self._waited or not self._multiplied)
        self._multiplied = True
        return seconds

    def end_round(self, seconds: Sequence[float]) -> None:
        """Record what the test cost, and check the product if there was one."""
        begun_s = time.perf_counter()
        self._wrong = self.product.fault() if self._multiplied else ""
        self._multiplied = False
        self.intrusion.note(seconds, time.perf_counter() - begun_s)

    def tags(self) -> dict[str, str]:
        """Return the tags of this round's readings."""
        # `cause`: what may have slowed them; `warmed`: the device was idle and had to be warmed up; `waited`: every
        # repeat of the product waited for the device, by the host's clock alone; `wrong`: the device computes wrong
        # results; `utilisation`, `temperature`: how busy the device was before, and how hot.
        cause, temperature_c = UNKNOWN, None
        if self._reader is not None and self._status is not None:
            before, self._status = self._status, self._reader.status()
            cause = cause_of(Symptoms.between(before, self._status, is_of_this_job))
            temperature_c = self._status.values.get("temperature_c")
        tags = {
            "cause": cause.to_tag() if cause.is_known else "",
            WARMED: "yes" if self._warmed else "",
            "waited": "yes" if self._waited else "",
            WRONG: self._wrong,
            UTILISATION: "" if self._utilisation is None else str(self._utilisation),
            TEMPERATURE: "" if temperature_c is None else f"{temperature_c:.0f}",
        }
        return {name: value for name, value in tags.items() if value}
