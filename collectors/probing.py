"""Probing one device in a job: a matrix product in each turn, and with it one of the other probes, in turn."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import cached_property

from collectors.causes import UNKNOWN, cause_of
from collectors.device import Device
from collectors.idle import WarmUp
from collectors.intrusion import Intrusion
from collectors.job_symptoms import is_of_this_job, symptom_reader
from collectors.probes import GEMM_PROBE, WRONG, Probe, ProbeUnavailableError, probes_of
from collectors.symptoms import SymptomsSince

__all__ = ["Probing"]

_MAIN = "main"
# What NVML tells of the bus is right just after these.
_COPIES = frozenset({"device_to_host", "host_to_device"})


class Probing:
    """The probes of one device, and what its driver tells between two turns.

    Parameters
    ----------
    device
        Where to run.
    in_turn
        Names of the other probes; those that the device cannot run at their full size are left out, since readings of
        another size have no peers.
    max_intrusion
        The share of the device's time that the probes may take.
    """

    def __init__(self, device: Device, in_turn: Collection[str], max_intrusion: float) -> None:
        self._device = device
        self._in_turn = in_turn
        self._intrusion = Intrusion(max_intrusion)
        reader = symptom_reader(device)
        self._symptoms = SymptomsSince(reader, is_of_this_job) if reader else None
        self._warm_up = WarmUp(reader.idles) if reader else None
        self._warmed = self._copied = self._multiplied = False
        self._wrong = ""

    @cached_property
    def _probes(self) -> dict[str, Probe]:
        return {probe.name: probe for probe in probes_of(self._device, {GEMM_PROBE, *self._in_turn})}

    @cached_property
    def _others(self) -> list[Probe]:
        return [probe for name, probe in self._probes.items() if name in self._in_turn and name != GEMM_PROBE]

    @cached_property
    def main(self) -> Probe:
        """The matrix product.

        Raises
        ------
        ProbeUnavailableError
            If the device's memory is too short for it.
        """
        if GEMM_PROBE not in self._probes:
            raise ProbeUnavailableError(f"gpu {self._device.gpu} cannot run {GEMM_PROBE}: its memory is short")
        self._probes[GEMM_PROBE].prepare()  # what was made after it may share its memory
        return self._probes[GEMM_PROBE]

    def main_seconds(self) -> float:
        """Run the matrix product once; return its seconds. Before the first of a turn, an idle device is woken."""
        if not self._multiplied:
            self._warmed = self._warm_up is not None and self._warm_up(self.main)
        self._multiplied = True
        return self.main.seconds()

    def end_main(self, seconds: Sequence[float]) -> None:
        """Take what the main test has cost, and check the product if it was one."""
        begun_s = time.perf_counter()
        self._wrong = self.main.fault() if self._multiplied else ""
        self._multiplied = False
        self._intrusion.note(_MAIN, seconds, time.perf_counter() - begun_s)

    def other(self, turn: int, repeats: int) -> tuple[str, tuple[float, ...]] | None:
        """Run the other probe whose turn it is; return its name and readings, nothing if there is none."""
        self._copied = False
        if not self._in_turn or not self._others:
            return None
        probe = self._others[turn % len(self._others)]
        begun_s = time.perf_counter()
        probe.prepare()
        prepared_s = time.perf_counter()
        seconds = tuple(probe.seconds() for _ in range(repeats))
        ended_s = time.perf_counter()
        self._wrong = self._wrong or probe.fault()
        self.main.prepare()
        self._intrusion.note(probe.name, seconds, prepared_s - begun_s + time.perf_counter() - ended_s)
        self._copied = probe.name in _COPIES
        return probe.name, seconds

    def turns_apart(self, interval_s: float) -> int:
        """Return how many turns must lie between two, for the probes to take no more than they may."""
        return self._intrusion.turns_apart(_MAIN, interval_s)

    def tags(self) -> dict[str, str]:
        """Return what should be known of this turn's readings.

        ``cause``: what may have slowed them; ``warmed``: the device had to be woken; ``wrong``: it computes wrongly.
        """
        cause = UNKNOWN
        if self._symptoms is not None:
            cause = cause_of(self._symptoms.take(bus_in_use=self._copied))
        tags = {"cause": "" if cause == UNKNOWN else cause, "warmed": "yes" if self._warmed else "", WRONG: self._wrong}
        return {name: value for name, value in tags.items() if value}
