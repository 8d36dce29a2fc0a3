"""Probing one device of a job: a matrix product in every round, and one of the other probes in turn."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

import psutil

from laggard.collectors.causes import TEMPERATURE, UNKNOWN, UTILISATION, WARMED, cause_of
from laggard.collectors.device import Device, GpuDevice
from laggard.collectors.errors import DriverUnavailableError, ProbeUnavailableError
from laggard.collectors.probe_schedule import Intrusion
from laggard.collectors.probes import GEMM_PROBE, WRONG, Probe, probes_of
from laggard.collectors.symptoms import SymptomReader, SymptomTracker
from laggard.kvstore.client.environment import ENDPOINT_FILE

WARM_UP_LIMIT_S = 0.2
_MPS = "nvidia-cuda-mps"
_MAIN = "main"
# NVML's figures for the bus are only right just after these probes.
_COPIES = frozenset({"device_to_host", "host_to_device"})
# The devices of a node run a round at one moment; the bus and the host's memory, which GPUs share, they use in turn.
# Virtual devices share processors, but their clocks count their own processor time.
_BUS = threading.BoundedSemaphore(1)
# A device that is stuck keeps the others waiting no longer than this.
TURN_DEADLINE_S = 1.0


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


@contextlib.contextmanager
def bus_turn(probe: str, deadline_s: float = TURN_DEADLINE_S) -> Iterator[None]:
    """Wait until no other device of the node uses the bus, for a second at most, if this probe does."""
    has_turn = probe in _COPIES and _BUS.acquire(timeout=deadline_s)
    try:
        yield
    finally:
        if has_turn:
            _BUS.release()


class Probing:
    """The probes of one device, and what its driver reports from round to round."""

    def __init__(
        self,
        device: Device,
        in_turn: Collection[str],
        max_intrusion: float,
        reader_of: Callable[[Device], SymptomReader | None] = symptom_reader,
    ) -> None:
        self._device = device  # the device to run on
        # Names of the other probes. Those that the device cannot run at full size are left out, because readings of
        # another size cannot be compared with the peers'.
        self._in_turn = in_turn
        self._intrusion = Intrusion(max_intrusion)
        self._reader = reader = reader_of(device)
        self._utilisation: int | None = None
        self._symptoms = SymptomTracker(reader, is_of_this_job) if reader else None
        self._warm_up = WarmUp(reader.is_idle) if reader else None
        self._warmed = self._copied = self._multiplied = False
        self._wrong = ""
        self._waited = False  # in each repeat of the round

    @cached_property
    def _probes(self) -> dict[str, Probe]:
        return {probe.name: probe for probe in probes_of(self._device, {GEMM_PROBE, *self._in_turn})}

    @cached_property
    def _others(self) -> list[Probe]:
        return [probe for name, probe in self._probes.items() if name in self._in_turn and name != GEMM_PROBE]

    @cached_property
    def main(self) -> Probe:
        """The matrix product."""
        if GEMM_PROBE not in self._probes:
            raise ProbeUnavailableError(self._device.gpu, f"has too little free memory to run {GEMM_PROBE}")
        self._probes[GEMM_PROBE].prepare()  # a probe created after it may share its memory
        return self._probes[GEMM_PROBE]

    def main_seconds(self) -> float:
        """Run the matrix product once; return its seconds. An idle device is warmed up before a round's first run."""
        if not self._multiplied:
            self._utilisation = None if self._reader is None else self._reader.utilisation()
            self._warmed = self._warm_up is not None and self._warm_up(self.main)
        seconds = self.main.seconds()
        self._waited = self.main.timing.waited and (self._waited or not self._multiplied)
        self._multiplied = True
        return seconds

    def end_main(self, seconds: Sequence[float]) -> None:
        """Record what the main test cost, and check the product if there was one."""
        begun_s = time.perf_counter()
        self._wrong = self.main.fault() if self._multiplied else ""
        self._multiplied = False
        self._intrusion.note(_MAIN, seconds, time.perf_counter() - begun_s)

    def other(self, number: int, repeats: int) -> tuple[str, tuple[float, ...]] | None:
        """Run the other probe whose turn it is in this round; return its name and readings, None if there is none."""
        self._copied = False
        if not self._in_turn or not self._others:
            return None
        probe = self._others[number % len(self._others)]
        begun_s = time.perf_counter()
        probe.prepare()
        prepared_s = time.perf_counter()
        with bus_turn(probe.name):
            seconds = tuple(probe.seconds() for _ in range(repeats))
        ended_s = time.perf_counter()
        self._wrong = self._wrong or probe.fault()
        self.main.prepare()
        self._intrusion.note(probe.name, seconds, prepared_s - begun_s + time.perf_counter() - ended_s)
        self._copied = probe.name in _COPIES
        return probe.name, seconds

    def stride(self, interval_s: float) -> int:
        """Return how many intervals apart the rounds must be, for the probes to keep to their share of the time."""
        return self._intrusion.stride(_MAIN, interval_s)

    def tags(self) -> dict[str, str]:
        """Return the tags of this round's readings."""
        # `cause`: what may have slowed them; `warmed`: the device was idle and had to be warmed up; `waited`: every
        # repeat of the product waited for the device, by the host's clock alone; `wrong`: the device computes wrong
        # results; `utilisation`, `temperature`: how busy the device was before, and how hot.
        cause, temperature_c = UNKNOWN, None
        if self._symptoms is not None:
            symptoms = self._symptoms.take(bus_in_use=self._copied)
            cause, temperature_c = cause_of(symptoms), symptoms.now.get("temperature_c")
        tags = {
            "cause": cause.to_tag() if cause.is_known else "",
            WARMED: "yes" if self._warmed else "",
            "waited": "yes" if self._waited else "",
            WRONG: self._wrong,
            UTILISATION: "" if self._utilisation is None else str(self._utilisation),
            TEMPERATURE: "" if temperature_c is None else f"{temperature_c:.0f}",
        }
        return {name: value for name, value in tags.items() if value}
