"""What is made of the times of one section: which ranks are slow in it, and whether a restart would help.

A test kernel is the same work on all devices, a section of a program is not. So a rank that is slow in a section is
reported, and a restart is asked for only if something says that its device or node is the reason, and if it is worth
it, by the same rules as for devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.collectors.device import DeviceId
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.economics.episode import Episode
from laggard.detectors.evidence import Reason
from laggard.detectors.judging.groups import Groups, label_of
from laggard.detectors.judging.judge import Analysis, Moment
from laggard.detectors.judging.rounds import Round
from laggard.detectors.notices import Notice
from laggard.detectors.verdict import Verdict

_NOT_PROBED = Reason("not probed since")

Condition = Literal["not probed", "not known", "well", "slow"]
"""What test kernels say of a device; ``not known``: they run there, but have not since they were asked about it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that times sections, as its samples describe it."""

    host: str  # its node
    name: str  # `rank 3`, else `gpu 1`, else `process 4711`
    rank: int | None  # `None` if it has none
    gpu: str  # its device; empty if it has none, or if that is not known

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Worker:
        """Return the worker that a sample is of."""
        name = next((f"{kind} {tags[kind]}" for kind in ("rank", "gpu", "process") if kind in tags), "")
        return cls(tags["host"], name, int(tags["rank"]) if "rank" in tags else None, tags.get("gpu", ""))

    @property
    def process(self) -> str:
        """Its name, unless that is its device's."""
        return "" if self.name.startswith("gpu") else self.name


def worker_of(tags: Mapping[str, str]) -> DeviceId:
    """Return the pair by which a worker is told from others in rounds: its host and its name."""
    worker = Worker.of(tags)
    return worker.host, worker.name


@dataclass(frozen=True, slots=True)
class Probes:
    """What the test kernels say of a device; without probes, nothing."""

    # Whether they find it slower than before or than its peers, by readings since a moment (Unix time)
    condition: Callable[[DeviceId, float], Condition] = lambda *_: "not probed"
    model: Callable[[DeviceId], str] = lambda _: ""  # its model; empty if not known
    cause: Callable[[DeviceId], Cause] = lambda _: UNKNOWN  # the likely cause of a slowdown


class SectionReadings(Analysis):
    """The times of one section."""

    def __init__(
        self, section: str, analysis: SlowGPUAnalysis, groups: Groups, probes: Probes, asked: MutableMapping[str, str]
    ) -> None:
        self._section = section
        self._compared = analysis
        # Labels of ranks, devices and hosts; only workers with the same label are compared. A label that the program
        # gives itself comes first; without any, the model of the device is the label.
        self._groups = groups
        self._probes = probes  # what the test kernels say
        # For which ranks any section has asked for a restart, and on which node that was; shared by all sections
        self._asked = asked
        self._workers: dict[DeviceId, Worker] = {}
        self._given: dict[DeviceId, Hashable] = {}  # labels, for those that were given one
        self._labels: Mapping[DeviceId, Hashable] = {}
        self._unanswered: list[Verdict] = []  # for which test kernels have not run yet

    @property
    def min_slowdown(self) -> float:
        """The smallest slowdown that matters."""
        return self._compared.min_slowdown

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record who a worker is, and its label."""
        worker = self._workers[device] = Worker.of(tags)
        label = tags.get("group") or label_of(self._groups, worker.rank, worker.host, worker.gpu)
        if label is not None:
            self._given[device] = label

    def update(self, readings: Round, moment: Moment) -> list[Verdict]:
        """Compare a round.

        Who is slower by less than matters is not told of: others on a host slow some of its ranks by a few percent.
        """
        labels = {
            device: (self._given.get(device), self._probes.model((worker.host, worker.gpu)))
            for device, worker in self._workers.items()
        }
        if labels != self._labels:
            self._labels = labels
            self._compared.set_groups(labels)
        found = self._compared.update(readings, moment.now_s)
        return [verdict for verdict in found if verdict.slowdown >= self.min_slowdown]

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a worker is in."""
        return self._compared.episode(device)

    def identities(self) -> Mapping[DeviceId, str]:
        """Return the workers' nodes: what a rank loses goes with its node."""
        return {device: device[0] for device in self._workers}

    def decided(self, weighed: Sequence[Verdict]) -> list[Verdict]:
        """Note restarts; return the verdicts for which test kernels had not run, now that they have and say no."""
        asked = [device for each in weighed if each.action == "restart" for device in self._accused_by(each)]
        self._asked.update({name: host for host, name in asked if self._workers[host, name].rank is not None})
        slow = [verdict for verdict in self._unanswered if any(map(self._compared.suspects, self._accused_by(verdict)))]
        reasons = [(verdict, self.why_not(verdict)) for verdict in slow]
        self._unanswered = [verdict for verdict, why in reasons if why == _NOT_PROBED]
        self._unanswered += [verdict for verdict in weighed if _reason_of(verdict) == _NOT_PROBED]
        return [_because_of(verdict, why) for verdict, why in reasons if why not in {None, _NOT_PROBED}]

    def named(self, verdict: Verdict) -> Verdict:
        """Return a verdict as one against a rank and its device, or against a node."""
        evidence = replace(verdict.evidence, section=self._section)
        if verdict.gpu is None:
            return replace(verdict, evidence=evidence)
        [device] = self._accused_by(verdict)
        worker = self._workers[device]
        cause = self._probes.cause((worker.host, worker.gpu))
        evidence = replace(evidence, gpu=worker.gpu or None, worker=worker.process)
        return replace(verdict, gpu=worker.gpu or None, evidence=evidence, cause=cause)

    def why_not(self, verdict: Verdict) -> Reason | None:
        """Return why a restart is not asked for; ``None`` if it may be."""
        accused = self._accused_by(verdict)
        own_past = verdict.evidence.own_past or all(map(self._compared.became_slow, accused))
        reasons = (self._why_not_for(device, own_past=own_past) for device in accused)
        return next((why for why in reasons if why is not None), None)

    def take_notices(self) -> Sequence[Notice]:
        """Return what all ranks share."""
        notices = self._compared.take_notices()
        return [replace(notice, group=replace(notice.group, are_ranks=True)) for notice in notices]

    def _accused_by(self, verdict: Verdict) -> list[DeviceId]:
        """Return the workers that a verdict of the analysis is against."""
        return [each for each in self._workers if each[0] == verdict.host and verdict.gpu in {None, each[1]}]

    def _why_not_for(self, device: DeviceId, *, own_past: bool) -> Reason | None:
        worker, episode = self._workers[device], self._compared.episode(device)
        since_s = -math.inf if episode is None or math.isnan(episode.since_s) else episode.since_s
        condition = self._probes.condition((worker.host, worker.gpu), since_s)
        if condition == "slow":
            return None
        if condition == "well":
            return Reason("device is well")
        if condition == "not known":
            return _NOT_PROBED
        before = self._asked.get(worker.name, worker.host)
        if before != worker.host:
            return Reason("slow elsewhere", host=before)
        return None if own_past or device in self._given else Reason("unknown shares")


def _reason_of(verdict: Verdict) -> Reason | None:
    weighed = verdict.evidence.weighed
    return None if weighed is None or verdict.evidence.at_times else weighed.why


def _because_of(verdict: Verdict, why: Reason | None) -> Verdict:
    weighed = verdict.evidence.weighed
    if weighed is None:
        return verdict
    return replace(verdict, evidence=replace(verdict.evidence, weighed=replace(weighed, why=why)))
