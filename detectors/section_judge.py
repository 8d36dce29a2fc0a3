"""What is made of the times of one section: which ranks are slow in it, and whether a restart would help.

A test kernel is the same work on all devices, a section of a program is not. So a rank that is slow in a section is
reported, and a restart is asked for only if something says that its device or node is the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from laggard.collectors.device import DeviceId
from laggard.detectors.analysis import SlowGPUAnalysis
from laggard.detectors.groups import Groups, label_of
from laggard.detectors.rounds import Round
from laggard.detectors.verdict import Verdict
from laggard.kvstore.codec import Value
from laggard.kvstore.errors import StateUnavailableError

__all__ = ["Probes", "SectionJudge", "Worker", "worker_of"]

_log = logging.getLogger("laggard.detectors")

ACCUSED = "laggard/slow-section"
"""Begins the keys of State under which it is kept; the section's name and the rank follow."""


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
    suspects
        Whether they find it slower than before or than its peers; ``None``: they do not run there.
    model
        Its model; empty if not known.
    cause
        The likely cause of a slowdown.
    """

    suspects: Callable[[DeviceId], bool | None] = lambda _: None
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
    accused
        Where to keep, from launch to launch, on which host each rank was when a restart was asked for because of it.
    """

    def __init__(
        self,
        section: str,
        analysis: SlowGPUAnalysis,
        groups: Groups,
        probes: Probes,
        accused: MutableMapping[str, Value],
    ) -> None:
        self._section = section
        self._analysis = analysis
        self._groups = groups
        self._probes = probes
        self._accused = accused
        self._workers: dict[DeviceId, Worker] = {}
        self._given: dict[DeviceId, Hashable] = {}  # labels, for those that were given one
        self._labels: Mapping[DeviceId, Hashable] | None = None
        self._undecided: list[Verdict] = []  # against workers that are slow, but maybe have more to do than their peers

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record who a worker is, and its label."""
        worker = self._workers[device] = Worker.of(tags)
        label = tags.get("group") or label_of(self._groups, worker.rank, worker.host, worker.gpu)
        if label is not None:
            self._given[device] = label

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        self._group()
        found = self._analysis.update(readings, now_s)
        decided = [replace(verdict, own_past=True) for verdict in self._undecided if self._has_become_slow(verdict)]
        self._undecided = [verdict for verdict in self._undecided if self._remains_open(verdict)]
        told = [self._of_workers(verdict) for verdict in found]
        self._undecided += [
            verdict
            for verdict, said in zip(found, told, strict=True)
            if verdict.action != said.action and not verdict.own_past
        ]
        return told + [said for verdict in decided if (said := self._of_workers(verdict)).action == "restart"]

    def take_notices(self) -> list[str]:
        """Return what is new about all ranks together; see :meth:`SlowGPUAnalysis.take_notices`."""
        return [notice.replace(" devices", " ranks", 1) for notice in self._analysis.take_notices()]

    def _has_become_slow(self, verdict: Verdict) -> bool:
        return all(map(self._analysis.became_slow, self._accused_by(verdict)))

    def _remains_open(self, verdict: Verdict) -> bool:
        accused = self._accused_by(verdict)
        return not self._has_become_slow(verdict) and any(map(self._analysis.suspects, accused))

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
        what = f"{verdict.evidence.partition(': ')[2]}, in the section {self._section}"
        if verdict.gpu is None:
            verdict = replace(verdict, evidence=f"{verdict.host}: {what.replace(' devices', ' ranks')}")
        else:
            [worker] = accused
            cause = self._probes.cause((worker.host, worker.gpu))
            verdict = replace(verdict, gpu=worker.gpu or None, evidence=f"{worker.where}: {what}", cause=cause)
        if verdict.action == "report":
            waits = "" if verdict.severity == "suspect" else "; not yet worth a restart"
            return replace(verdict, evidence=verdict.evidence + waits)
        reasons = (self._why_no_restart(worker, own_past=verdict.own_past) for worker in accused)
        if why_not := next(filter(None, reasons), ""):
            return replace(verdict, action="report", evidence=f"{verdict.evidence}; no restart, {why_not}")
        self._remember(accused)
        return verdict

    def _why_no_restart(self, worker: Worker, *, own_past: bool) -> str:
        """Return why a restart is not asked for; empty if it is."""
        suspects = self._probes.suspects((worker.host, worker.gpu))
        if suspects:
            return ""
        if suspects is False:
            return "for test kernels on its device are not slow"
        if (before := self._accused_on(worker)) not in {None, worker.host}:
            return f"for it was as slow on {before}: its share of the work may be larger"
        if own_past or (worker.host, worker.name) in self._given:
            return ""
        return "for its share of the work may be larger: groups say which ranks have equal shares"

    def _accused_on(self, worker: Worker) -> object:
        try:
            return self._accused.get(self._key(worker))
        except StateUnavailableError:
            return None

    def _remember(self, workers: Sequence[Worker]) -> None:
        try:
            for worker in workers:
                if worker.rank is not None:
                    self._accused[self._key(worker)] = worker.host
        except StateUnavailableError as error:
            _log.warning("which rank was accused was not kept: %s", error)

    def _key(self, worker: Worker) -> str:
        return f"{ACCUSED}/{self._section}/{worker.rank}"
