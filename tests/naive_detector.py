"""The obvious slow detector: one device, one probe, one round at a time, in plain Python; an oracle for the fast one.

It knows single-probe jobs of fewer than 16 devices, which stay the same, and their groups.  It answers with each
device's evidence, up to the first verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from laggard.collectors.device import DeviceId

__all__ = ["NaiveDetector"]

GAPS = {2: 0.564, 3: 0.846, 4: 1.029, 5: 1.163}
TESTS = [(test, level) for test in ("self", "peer") for level in ("report", "restart")]


@dataclass
class Memory:
    residuals: list[float] = field(default_factory=list)
    baseline: float | None = None
    common: float = 0.0
    noise: float = 0.0
    evidence: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(TESTS, 0.0))
    run: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))
    runs: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))


@dataclass
class Group:
    spreads: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    rounds: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))
    runs: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))
    exceedances: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))


class NaiveDetector:
    """See the module."""

    def __init__(self, labels: Mapping[DeviceId, str], min_slowdown: float = 1.05, budget: float = 1e-4) -> None:
        self.labels = labels
        self.budget = budget
        self.rounds_tested = dict.fromkeys(("self", "peer"), 0)
        self.memory = {device: Memory() for device in labels}
        self.groups = {label: Group() for label in labels.values()}
        restart = math.log(min_slowdown)
        self.self_levels = {"report": 0.3 * restart, "restart": restart}
        self.peer_levels = {"report": max(0.3 * restart, math.log(1.05)), "restart": max(restart, math.log(1.07))}

    def update(self, readings: Mapping[DeviceId, Sequence[float]]) -> None:
        good = {device: [x for x in values if 0 < x < math.inf] for device, values in readings.items()}
        present = {device for device, values in good.items() if values}
        tested_devices = 0
        steps = []
        for label in self.groups:
            members = [device for device in self.labels if self.labels[device] == label]
            here = [device for device in members if device in present]
            if here:
                steps.append((label, members, here, self.compare(label, members, here, good)))
        for _, _, here, compared in steps:
            tested_devices += sum(1 for device in here if any(compared[0][device, key] is not None for key in TESTS))
        for test in self.rounds_tested:
            flags = [each for *_, (exceeds, _, _) in steps for (_, key), each in exceeds.items() if key[0] == test]
            self.rounds_tested[test] += any(flag is not None for flag in flags)
        for label, members, here, (exceeds, residual, common) in steps:
            self.accumulate(label, here, exceeds, tested_devices)
            self.remember(label, members, here, residual, common)

    def compare(
        self, label: str, members: list[DeviceId], here: list[DeviceId], good: Mapping[DeviceId, list[float]]
    ) -> tuple[dict[tuple[DeviceId, tuple[str, str]], bool | None], dict[DeviceId, float], float]:
        group, memory = self.groups[label], self.memory
        logs = {device: math.log(min(good[device])) for device in here}
        middle, spread = center_and_spread(list(logs.values()))
        shifted = [logs[device] - base for device in here if (base := memory[device].baseline) is not None]
        common, unrest = center_and_spread(shifted) if shifted else (middle, 0.0)
        unrest = unrest if len(here) > 3 else 0.0
        residual = {device: logs[device] - common - (memory[device].baseline or 0.0) for device in here}
        group.spreads = [*group.spreads, spread][-8:]
        group.early = [*group.early, early_noise(memory, here, good, residual)][-8:]
        known = [value for value in group.early if not math.isnan(value)]
        early = sum(known) / len(known) if known else math.nan
        chips = min(3.5 * sum(group.spreads) / len(group.spreads), 0.12)  # fewer than 16 devices

        exceeds: dict[tuple[DeviceId, tuple[str, str]], bool | None] = {}
        for level in ("report", "restart"):
            slower, alone, born = {}, {}, {}
            for device in here:
                noise = self.noise_of(device, members)
                limit = max(self.self_levels[level], 5 * max(noise, unrest))
                slower[device] = memory[device].baseline is not None and residual[device] > limit
                alone[device] = residual[device] + common - memory[device].common > limit
                noise = self.excused(device, members) if memory[device].baseline is not None else early
                effect = self.peer_levels[level] + 0.2 / max(len(here) - 1, 1) ** 2
                if len(here) == 2:
                    effect = max(2 * self.peer_levels[level], math.log(2))
                effect += 3 * noise
                bar = effect if len(here) == 2 else max(effect, chips)
                born[device] = logs[device] - middle > bar
            crowded = {kind: sum(flags.values()) >= 0.45 * len(here) for kind, flags in (("s", slower), ("b", born))}
            for device in here:
                has_past = memory[device].baseline is not None
                slow = slower[device] and (alone[device] or not crowded["s"])
                exceeds[device, ("self", level)] = slow if has_past else None
                unknown = len(here) < 2 or (not has_past and math.isnan(early))
                slow = born[device] and (not crowded["b"] or len(here) == 2)
                exceeds[device, ("peer", level)] = None if unknown else slow
        return exceeds, residual, common

    def noise_of(self, device: DeviceId, members: list[DeviceId]) -> float:
        return max(self.memory[device].noise, self.typical_noise(members), 0.001)

    def excused(self, device: DeviceId, members: list[DeviceId]) -> float:
        return min(self.noise_of(device, members), max(5 * self.typical_noise(members), 0.1))

    def typical_noise(self, members: list[DeviceId]) -> float:
        noises = sorted(self.memory[member].noise for member in members if self.memory[member].baseline is not None)
        return noises[len(noises) // 2] if noises else 0.0

    def accumulate(
        self,
        label: str,
        here: list[DeviceId],
        exceeds: Mapping[tuple[DeviceId, tuple[str, str]], bool | None],
        count: int,
    ) -> None:
        group = self.groups[label]
        first, again = {}, {}
        for key in TESTS:
            runs, repeats = group.runs[key], group.exceedances[key] - group.runs[key]
            first[key] = min(max((runs + 2 * math.sqrt(runs) + 1) / (group.rounds[key] + 50), 0.005), 0.98)
            again[key] = (repeats + 2 * math.sqrt(repeats) + 0.2) / (group.exceedances[key] + 20)
            again[key] = min(max(again[key], 0.005), 0.98)
        for device in here:
            memory = self.memory[device]
            for key in TESTS:
                exceeding = exceeds[device, key]
                if exceeding is None:
                    continue
                rate = min(max(memory.runs[key] / (len(memory.residuals) + 8), first[key]), 0.98)
                if memory.run[key]:
                    rate = max(rate, again[key])
                share = self.rounds_tested[key[0]] ** -1.1 / 10.5844484649508 / (2 * max(count, 1))
                slow = max(0.8, (1 + rate) / 2)
                factor = slow / rate if exceeding else (1 - slow) / (1 - rate)
                memory.evidence[key] = min((memory.evidence[key] + share) * factor, 100 / self.budget)
                group.rounds[key] += 1
                if not exceeding and memory.run[key]:
                    group.runs[key] += 1
                    group.exceedances[key] += memory.run[key]
                    memory.runs[key] += 1
                memory.run[key] = memory.run[key] + 1 if exceeding else 0

    def remember(
        self,
        label: str,
        members: list[DeviceId],
        here: list[DeviceId],
        residual: Mapping[DeviceId, float],
        common: float,
    ) -> None:
        ready = []
        for device in here:
            memory = self.memory[device]
            memory.residuals.append(residual[device])
            if memory.baseline is None:
                memory.common += common / 8
                if len(memory.residuals) == 8:
                    memory.baseline, memory.noise = usual_and_noise(memory.residuals)
                    memory.residuals = [value - memory.baseline for value in memory.residuals]
                    ready.append(device)
        for device in ready:
            for level in ("report", "restart"):
                limit = max(self.self_levels[level], 5 * self.noise_of(device, members))
                flags = [value > limit for value in self.memory[device].residuals]
                group, key = self.groups[label], ("self", level)
                group.rounds[key] += 8
                while flags[-1]:  # a run that has not ended
                    flags.pop()
                    self.memory[device].run[key] += 1
                group.exceedances[key] += sum(flags)
                group.runs[key] += sum(now and not before for before, now in zip([False, *flags], flags, strict=False))


def usual_and_noise(rounds: list[float]) -> tuple[float, float]:
    usual = median(rounds)
    noise = 1.4826 * median(abs(value - usual) for value in rounds)
    for before in (3, 4, 5):
        parts = sorted((rounds[:before], rounds[before:]), key=min)
        fast, slow = (sorted(part) for part in parts)
        if slow[0] - fast[-1] > 2 * max(fast[-1] - fast[0], slow[-2] - slow[0]):
            noise = (fast[-1] - fast[0]) / {3: 1.693, 4: 2.059, 5: 2.326}[len(fast)]
            usual = median(fast) if before == 4 else usual
    return usual, noise


def center_and_spread(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    middle = ordered[last // 2]
    return middle, min((middle - ordered[last // 10]) / 1.2816, (middle - ordered[last // 5]) / 0.8416)


def early_noise(
    memory: Mapping[DeviceId, Memory],
    here: list[DeviceId],
    good: Mapping[DeviceId, list[float]],
    residual: Mapping[DeviceId, float],
) -> float:
    if not [device for device in here if memory[device].baseline is None]:
        return math.nan
    noises = sorted(
        math.log(median(values) / min(values)) * 0.75 / GAPS[len(values)]
        for device in here
        if len(values := good[device]) > 1
    )
    if not noises:
        noises = sorted(
            abs(residual[device] - memory[device].residuals[-1]) * 1.4826 * 1.06
            for device in here
            if memory[device].baseline is None and memory[device].residuals
        )
    return noises[len(noises) // 2] if noises else math.nan
