"""What is made of the times of one section: which ranks are slow in it, and whether a restart would help.

A test kernel is the same work on all devices, a section of a program is not. So a rank that is slow in a section is
reported, and a restart is asked for only if something says that its device or node is the reason, and if it is worth
it, by the same rules as for devices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from laggard.collectors.device import DeviceId
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.judging.declared_phases import DeclaredPhases
from laggard.detectors.judging.groups import Groups, label_of
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.section_memory import SectionMemory
from laggard.detectors.statistics.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import LaunchRecord, Signs

__all__ = ["Condition", "Probes", "SectionJudge", "Worker", "worker_of"]

_log = logging.getLogger("laggard.detectors")

_NOT_RUN = "test kernels have not run on its device since then"

Condition = Literal["not probed", "not known", "well", "slow"]
"""What test kernels say of a device; ``not known``: they run there, but have not since they were asked about it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that times sections, as its samples describe it.

    Attributes
    ----------
    host
        Its node.
    name
        ``rank 3``, else ``gpu 1``, else ``process 4711``.
    rank
        ``None`` if it has none.
    gpu
        Its device; empty if it has none, or if that is not known.
    """

    host: str
    name: str
    rank: int | None
    gpu: str

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Worker:
        """Return the worker that a sample is of."""
        name = next((f"{kind} {tags[kind]}" for kind in ("rank", "gpu", "process") if kind in tags), "")
        return cls(tags["host"], name, int(tags["rank"]) if "rank" in tags else None, tags.get("gpu", ""))

    @property
    def where(self) -> str:
        """What a verdict calls it: ``rank 3 on node2 gpu 1``."""
        place = f"{self.host} gpu {self.gpu}" if self.gpu else self.host
        return place if self.name.startswith("gpu") or not self.name else f"{self.name} on {place}"


def worker_of(tags: Mapping[str, str]) -> DeviceId:
    """Return the pair by which a worker is told from others in rounds: its host and its name."""
    worker = Worker.of(tags)
    return worker.host, worker.name


@dataclass(frozen=True, slots=True)
class Probes:
    """What the test kernels say of a device; without probes, nothing.

    Attributes
    ----------
    condition
        Whether they find it slower than before or than its peers, by readings since a moment (Unix time).
    model
        Its model; empty if not known.
    cause
        The likely cause of a slowdown.
    """

    condition: Callable[[DeviceId, float], Condition] = lambda *_: "not probed"
    model: Callable[[DeviceId], str] = lambda _: ""
    cause: Callable[[DeviceId], str] = lambda _: "unknown"


class SectionJudge:
    """Judges the rounds of one section.

    Parameters
    ----------
    section
        Its name.
    analysis
        Compares the workers.
    groups
        Labels of ranks, devices and hosts; only workers with the same label are compared.  A label that the program
        gives itself comes first; without any, the model of the device is the label.
    probes
        What the test kernels say.
    restarts
        Weighs what slow workers cost.
    memory
        Keeps the incidents of all sections from launch to launch.
    """

    def __init__(
        self,
        section: str,
        analysis: SlowGPUAnalysis,
        groups: Groups,
        probes: Probes,
        restarts: Restarts,
        memory: SectionMemory,
    ) -> None:
        self._section = section
        self._analysis = analysis
        self._groups = groups
        self._probes = probes
        self._restarts = restarts
        self._memory = memory
        self._read_signs: Callable[[], Signs | None] = lambda: None
        self._phases = DeclaredPhases()
        self._workers: dict[DeviceId, Worker] = {}
        self._given: dict[DeviceId, Hashable] = {}  # labels, for those that were given one
        self._labels: Mapping[DeviceId, Hashable] | None = None
        self._unanswered: list[Verdict] = []  # for which test kernels have not run yet

    def begin(self, launch: LaunchRecord, read_signs: Callable[[], Signs | None], now_s: float) -> None:
        """Prepare for a launch; ``read_signs`` is as for :meth:`SlowGPUJudge.begin`."""
        self._read_signs = read_signs
        self._restarts.begin(launch)
        if (earlier := self._memory.of(self._section)) is not None:
            try:
                self._restarts.restore(earlier, now_s, same_run=self._memory.is_same_run)
            except (KeyError, ValueError) as error:
                _log.warning("the incidents in the section %s cannot be read: %s", self._section, error)

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record who a worker is, and its label."""
        worker = self._workers[device] = Worker.of(tags)
        label = tags.get("group") or label_of(self._groups, worker.rank, worker.host, worker.gpu)
        if label is not None:
            self._given[device] = label

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        self._group()
        if (signs := self._read_signs()) is not None:
            self._restarts.note_signs(signs, self._memory.own_commits, now_s)
            readings = self._phases.without(readings, signs.phases, now_s)
        found = self._analysis.update(readings, now_s)
        places = {device: device[0] for device in self._workers}
        min_slowdown = self._analysis.thresholds.min_slowdown
        grounds = Grounds(self._analysis.episode, places, min_slowdown, self._why_no_restart)
        weighed = self._restarts.weigh(found, grounds, readings, now_s)
        if weighed:
            asked = [each for verdict in weighed if verdict.action == "restart" for each in self._accused_by(verdict)]
            ranks = [each for each in asked if self._workers[each].rank is not None]
            self._memory.write(self._section, self._restarts.to_state(), ranks)
        return [self._of_workers(verdict) for verdict in (*weighed, *self._answered(weighed))]

    def _answered(self, weighed: Sequence[Verdict]) -> list[Verdict]:
        """Return again the verdicts for which test kernels had not run, now that they have and say no."""
        reasons = [(verdict, self._why_no_restart(verdict)) for verdict in self._unanswered]
        self._unanswered = [verdict for verdict, why in reasons if why == _NOT_RUN and self._is_slow(verdict)]
        self._unanswered += [verdict for verdict in weighed if verdict.evidence.endswith(_NOT_RUN)]
        is_said = {_NOT_RUN, ""}
        return [
            replace(verdict, evidence=verdict.evidence.replace(_NOT_RUN, why))
            for verdict, why in reasons
            if why not in is_said and self._is_slow(verdict)
        ]

    def _is_slow(self, verdict: Verdict) -> bool:
        return any(map(self._analysis.suspects, self._accused_by(verdict)))

    def take_notices(self) -> list[str]:
        """Return what is new about all ranks together; see :meth:`SlowGPUAnalysis.take_notices`."""
        return [notice.replace(" devices", " ranks", 1) for notice in self._analysis.take_notices()]

    def _accused_by(self, verdict: Verdict) -> list[DeviceId]:
        """Return the workers that a verdict of the analysis is against."""
        return [each for each in self._workers if each[0] == verdict.host and verdict.gpu in {None, each[1]}]

    def _group(self) -> None:
        """Pass on the labels if they have changed; if there is only one for all, clear classes are recognised."""
        labels = {
            device: (self._given.get(device), self._probes.model((worker.host, worker.gpu)))
            for device, worker in self._workers.items()
        }
        told = labels if self._given or len(set(labels.values())) > 1 else None
        if told != self._labels:
            self._labels = told
            self._analysis.set_groups(told)

    def _of_workers(self, verdict: Verdict) -> Verdict:
        """Return a verdict of the analysis as one against a rank and its device, or against a node."""
        accused = [self._workers[device] for device in self._accused_by(verdict)]
        found, separator, action = verdict.evidence.partition(": ")[2].partition("; ")
        what = f"{found}, in the section {self._section}{separator}{action}"
        if verdict.gpu is None:
            verdict = replace(verdict, evidence=f"{verdict.host}: {what.replace(' devices', ' ranks')}")
        else:
            [worker] = accused
            cause = self._probes.cause((worker.host, worker.gpu))
            verdict = replace(verdict, gpu=worker.gpu or None, evidence=f"{worker.where}: {what}", cause=cause)
        return verdict

    def _why_no_restart(self, verdict: Verdict) -> str:
        """Return why a restart is not asked for; empty if it may be."""
        accused = self._accused_by(verdict)
        own_past = verdict.own_past or all(map(self._analysis.became_slow, accused))
        reasons = (self._why_not_for(device, own_past=own_past) for device in accused)
        return next(filter(None, reasons), "")

    def _why_not_for(self, device: DeviceId, *, own_past: bool) -> str:
        worker, episode = self._workers[device], self._analysis.episode(device)
        since_s = -math.inf if episode is None or math.isnan(episode.since_s) else episode.since_s
        condition = self._probes.condition((worker.host, worker.gpu), since_s)
        if condition == "slow":
            return ""
        if condition == "well":
            return "test kernels find its device well: its work or a link is the reason"
        if condition == "not known":
            return _NOT_RUN
        if before := self._memory.asked_elsewhere(worker.name, worker.host):
            return f"it was slow on {before}, too: its share of the work may be larger"
        if own_past or device in self._given:
            return ""
        return "its share of the work may be larger: groups say which ranks have equal shares"
