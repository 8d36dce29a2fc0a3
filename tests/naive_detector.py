"""The obvious slow detector: one device, one probe, one round at a time, in plain Python; an oracle for the fast one.

It knows single-probe jobs of fewer than 16 devices, which stay the same, and their groups.  It answers with each
device's evidence, up to the first verdict.
"""

from __future__ import annotations

import math
from collections import Counter
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
    runs: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(TESTS, 0.0))
    exceedances: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(TESTS, 0.0))


@dataclass
class Group:
    spreads: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    size: int = 1
    held: dict[tuple[str, str], list[tuple[object, int]]] = field(default_factory=lambda: {key: [] for key in TESTS})
    rounds: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(TESTS, 0))
    runs: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(TESTS, 0.0))
    tries: dict[tuple[str, str], list[int]] = field(default_factory=lambda: {key: [0] * 5 for key in TESTS})
    repeats: dict[tuple[str, str], list[int]] = field(default_factory=lambda: {key: [0] * 5 for key in TESTS})
    wander: float = 0.0
    change: float = 0.0
    wandered: int = 2

    def learn(self, key: tuple[str, str], ended: Sequence[tuple[object, int]]) -> None:
        """Learn from the runs of exceedances that ended in a round, once another device has had one since."""
        held = self.held[key]
        new = [(device, length) for device, length in ended if device not in {each for each, _ in held}]
        shared = (held if new else []) + (new if len(new) > 1 else [])
        self.held[key] = [each for each in (*held, *new) if each not in shared]
        for _, length in shared:
            self.runs[key] += self.size / max(self.size - 1, 1)
            for age in range(1, length + 1):
                self.tries[key][age_class(age)] += 1
                self.repeats[key][age_class(age)] += age < length

    def first(self, key: tuple[str, str]) -> float:
        """Return the rate of first exceedances."""
        runs = self.runs[key]
        return min(max((runs + 2 * math.sqrt(runs) + 1 + len(self.held[key])) / (self.rounds[key] + 50), 0.005), 0.98)

    def again(self, key: tuple[str, str]) -> list[float]:
        """Return the rate of one more exceedance, by class of age."""
        tries, repeats = self.tries[key], self.repeats[key]
        rate = (repeats[0] + 2 * math.sqrt(repeats[0]) + 0.2) / (tries[0] + 20)
        found = [min(max(rate, 0.005), 0.98)]
        for age in range(1, 5):
            rate = (repeats[age] + 8 * found[-1]) / (tries[age] + 8)
            found.append(max(found[-1], min(max(rate, 0.005), 0.98)))
        return found


class NaiveDetector:
    """See the module."""

    def __init__(self, labels: Mapping[DeviceId, str], min_slowdown: float = 1.05, budget: float = 1e-4) -> None:
        self.labels = labels
        self.budget = budget
        self.rounds_tested = dict.fromkeys(("self", "peer"), 0)
        self.memory = {device: Memory() for device in labels}
        sizes = Counter(labels.values())
        self.groups = {label: Group(size=sizes[label]) for label in labels.values()}
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
            flags = [each for *_, (exceeds, *_) in steps for (_, key), each in exceeds.items() if key[0] == test]
            self.rounds_tested[test] += any(flag is not None for flag in flags)
        for label, members, here, (exceeds, far, residual, common) in steps:
            self.accumulate(label, here, exceeds, far, tested_devices)
            self.remember(label, members, here, residual, common)

    def compare(
        self, label: str, members: list[DeviceId], here: list[DeviceId], good: Mapping[DeviceId, list[float]]
    ) -> tuple[
        dict[tuple[DeviceId, tuple[str, str]], bool | None], set[tuple[DeviceId, str]], dict[DeviceId, float], float
    ]:
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
        far: set[tuple[DeviceId, str]] = set()
        for level in ("report", "restart"):
            slower, alone, born = {}, {}, {}
            for device in here:
                limit = max(self.self_levels[level], self.allowed(device, members, group, unrest))
                slower[device] = memory[device].baseline is not None and residual[device] > limit
                if level == "restart" and residual[device] > max(math.log(1.6), 3 * limit):
                    far.add((device, "self"))
                alone[device] = residual[device] + common - memory[device].common > limit
                noise = early
                if memory[device].baseline is not None:
                    noise = max(self.noise_of(device, members), min(group.wander, 0.05))
                effect = self.peer_levels[level] + 0.2 / max(len(here) - 1, 1) ** 2
                if len(here) == 2:
                    effect = max(2 * self.peer_levels[level], math.log(2))
                effect += 3 * noise
                bar = effect if len(here) == 2 else max(effect, chips)
                born[device] = logs[device] - middle > bar
                if level == "restart" and logs[device] - middle > max(math.log(1.6), 3 * bar):
                    far.add((device, "peer"))
            crowded = {kind: sum(flags.values()) >= 0.45 * len(here) for kind, flags in (("s", slower), ("b", born))}
            for device in here:
                has_past = memory[device].baseline is not None
                slow = slower[device] and (alone[device] or not crowded["s"])
                exceeds[device, ("self", level)] = slow if has_past else None
                unknown = len(here) < 2 or (not has_past and math.isnan(early))
                slow = born[device] and (not crowded["b"] or len(here) == 2)
                exceeds[device, ("peer", level)] = None if unknown else slow
        self.learn_wander(group, members, residual, exceeds)
        return exceeds, far, residual, common

    def learn_wander(
        self,
        group: Group,
        members: list[DeviceId],
        residual: Mapping[DeviceId, float],
        exceeds: Mapping[tuple[DeviceId, tuple[str, str]], bool | None],
    ) -> None:
        in_quiet = {d: max(self.self_levels["report"], self.allowed(d, members, group, 0.0)) for d in residual}
        within = [d for d in residual if exceeds[d, ("self", "report")] is False]
        calm = [device for device in within if residual[device] <= in_quiet[device]]
        if len(calm) < 3:
            return
        group.wandered = min(group.wandered + 1, 64)
        wander = sorted(abs(residual[device]) for device in calm)[len(calm) // 2]
        change = sorted(abs(residual[device] - self.memory[device].residuals[-1]) for device in calm)[len(calm) // 2]
        group.wander += (1.4826 * wander - group.wander) / group.wandered
        group.change += (1.4826 * change / math.sqrt(2) - group.change) / group.wandered

    def allowed(self, device: DeviceId, members: list[DeviceId], group: Group, unrest: float) -> float:
        lasting = 1.0
        if group.wandered >= 10:
            lasting = min(max((0.82 - group.change / max(group.wander, 0.001)) / 0.25, 0.0), 1.0)
        typical = max(self.typical_noise(members), 0.001)
        noise = typical + lasting * (self.noise_of(device, members) - typical)
        return (2 + 3 * lasting) * max(noise, unrest, group.wander)

    def noise_of(self, device: DeviceId, members: list[DeviceId]) -> float:
        known = [self.memory[member].noise for member in members if self.memory[member].baseline is not None]
        quieter = sorted(known)[(len(known) - 1) // 2] if known else 0.0
        noise = max(self.memory[device].noise, self.typical_noise(members), 0.001)
        return min(noise, max(5 * quieter, 0.05))

    def typical_noise(self, members: list[DeviceId]) -> float:
        noises = sorted(self.memory[member].noise for member in members if self.memory[member].baseline is not None)
        return noises[len(noises) // 2] if noises else 0.0

    def accumulate(
        self,
        label: str,
        here: list[DeviceId],
        exceeds: Mapping[tuple[DeviceId, tuple[str, str]], bool | None],
        far: set[tuple[DeviceId, str]],
        count: int,
    ) -> None:
        group = self.groups[label]
        first, again = {key: group.first(key) for key in TESTS}, {key: group.again(key) for key in TESTS}
        ended: dict[tuple[str, str], list[tuple[object, int]]] = {key: [] for key in TESTS}
        for device in here:
            memory = self.memory[device]
            for key in TESTS:
                exceeding = exceeds[device, key]
                if exceeding is None:
                    continue
                own, own_again = own_rates(len(memory.residuals), memory.runs[key], memory.exceedances[key])
                of_group = first[key]
                if memory.run[key]:
                    of_group = max(of_group, again[key][age_class(memory.run[key])])
                    own = max(own, own_again)
                share = self.rounds_tested[key[0]] ** -1.1 / 10.5844484649508 / (2 * max(count, 1))
                factor = factor_of(exceeding, (device, key[0]) in far, of_group, own)
                memory.evidence[key] = min((memory.evidence[key] + share) * factor, 100 / self.budget)
                group.rounds[key] += not memory.run[key]
                if not exceeding and memory.run[key]:
                    ended[key].append((device, memory.run[key]))
                    memory.runs[key] += 1
                    memory.exceedances[key] += memory.run[key]
                memory.run[key] = memory.run[key] + 1 if exceeding else 0
        for key in TESTS:
            group.learn(key, ended[key])

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
            if len(memory.residuals) % 64 == 0:
                for key in TESTS:
                    memory.runs[key] /= 2
                    memory.exceedances[key] /= 2
            if memory.baseline is not None and len(memory.residuals) <= 64:
                most = min(memory.noise, 0.1)
                step = max(-most, min(residual[device], most))
                memory.baseline += step / len(memory.residuals)
            if memory.baseline is None:
                memory.common += common / 8
                if len(memory.residuals) == 8:
                    memory.baseline, memory.noise = usual_and_noise(memory.residuals)
                    memory.residuals = [value - memory.baseline for value in memory.residuals]
                    ready.append(device)
        group = self.groups[label]
        for level in ("report", "restart"):
            key, run = ("self", level), dict.fromkeys(ready, 0)
            for number in range(8):
                ended: list[tuple[object, int]] = []
                for device in ready:
                    limit = max(self.self_levels[level], 5 * self.noise_of(device, members))
                    now = self.memory[device].residuals[number] > limit
                    group.rounds[key] += not run[device]
                    if run[device] and not now:
                        ended.append((device, run[device]))
                    run[device] = run[device] + 1 if now else 0
                group.learn(key, ended)
            for device in ready:
                self.memory[device].run[key] = run[device]  # which has not ended


def age_class(age: int) -> int:
    return min(int(math.log2(age)), 4)


def factor_of(exceeds: bool, far: bool, of_group: float, own: float) -> float:
    own = min(own, max(0.1, min(2 * of_group, 0.98)))
    rate = max(of_group, own)
    slow, slow_of_group = max(0.8, (1 + rate) / 2), max(0.8, (1 + of_group) / 2)
    if not exceeds:
        return (1 - slow) / (1 - rate)
    if own <= of_group:
        return slow / rate
    return 0.2 * slow_of_group / of_group if far else 0.8 * slow / rate


def own_rates(seen: int, runs: float, exceedances: float) -> tuple[float, float]:
    halved, latest = divmod(seen, 64)
    remembered = sum(64 / 2**number for number in range(1, halved + 1)) + latest
    repeats = exceedances - runs
    first = (runs + math.sqrt(runs)) / (max(remembered - exceedances, 0) + 8)
    return first, (repeats + math.sqrt(repeats)) / (exceedances + 20)


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
