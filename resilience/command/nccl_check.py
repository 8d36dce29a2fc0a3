"""Bursts by NCCL between the GPUs of many nodes, once, where no program runs: a part of ``laggard doctor``.

This side decides who meets whom, and carries the unique ids from one end to the other. The nodes do as they are told
(:mod:`laggard.collectors.links.nccl_processes`), all of them at once, and one step after another: who hangs holds the
others up for that step's deadline, and is not waited for in the next.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from laggard.collectors.boards import Boards
from laggard.collectors.device import DeviceId, VirtualDevice
from laggard.collectors.device_check import DeviceCheck
from laggard.collectors.links.prober import bytes_for
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import Pair, circle
from laggard.resilience.text import abbreviated

__all__ = ["NcclCheck", "NcclMeeting", "Rails", "check_nccl", "meetings_of", "rails_of"]

START_S = 60.0
"""For a process to load CuPy and NCCL."""
JOIN_S = 60.0
"""For two ranks to make a communicator: it takes seconds, see docs/decisions/0013."""
BURSTS_S = 30.0
FIRST_BYTES, MOST_BYTES = 4 << 20, 256 << 20
MOST_FAILURES = 3
"""Of a GPU; one that is well may meet two that are not."""

Ask = Callable[[Mapping[str, object]], Mapping[str, Mapping[str, Any] | None]]
"""Tells nodes what to do, all at once, and returns what each has answered; None: it is gone."""


@dataclass(frozen=True, slots=True)
class Rails:
    """The GPUs that may send by NCCL: a rail is the GPUs of one number, on all nodes.

    Attributes
    ----------
    gpus
        Their names on each node, by number.
    busy
        The GPUs that another process uses: NCCL could have it wait for ever.
    """

    gpus: Mapping[str, Mapping[int, str]]
    busy: tuple[str, ...] = ()

    def on(self, hosts: Container[str]) -> Rails:
        """Return those of some nodes."""
        return replace(self, gpus={host: names for host, names in self.gpus.items() if host in hosts})


@dataclass(frozen=True, slots=True)
class NcclCheck:
    """What was measured by NCCL.

    Attributes
    ----------
    readings
        One for each direction of each link; ``path`` is the rail.
    failures
        Why there are others of which there is none, by ``gpu3: link node1 to node2``.
    remarks
        What was left out from the start, and why.
    """

    readings: Sequence[LinkReading] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NcclMeeting:
    """Two GPUs that send to each other.

    Attributes
    ----------
    rail
        The number that both have on their nodes.
    ends
        The two, rank 0 first.
    """

    rail: int
    ends: tuple[DeviceId, DeviceId]

    @property
    def path(self) -> str:
        """The rail's name."""
        return f"gpu{self.rail}"

    def __str__(self) -> str:
        (one, _), (other, _) = self.ends
        return f"{self.path}: link {one} to {other}"


Answers = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Of the two ends of a meeting."""


def rails_of(checks: Mapping[DeviceId, DeviceCheck], boards: Mapping[str, Boards]) -> Rails:
    """Return the GPUs whose probes have run, each with the number of its place among those of its node."""
    used = {board.uuid for listed in boards.values() for board in listed.found if board.uuid and board.processes}
    gpus: dict[str, dict[int, str]] = defaultdict(dict)
    busy: list[str] = []
    places: Counter[str] = Counter()
    for (host, gpu), check in checks.items():
        if check.seconds and check.model != VirtualDevice.model:
            if check.board in used:
                busy.append(f"{host} gpu {gpu}")
            else:
                gpus[host][places[host]] = gpu
        places[host] += 1
    return Rails(gpus, tuple(busy))


def meetings_of(pairs: Iterable[Pair], rails: Rails) -> list[NcclMeeting]:
    """Return the meetings of some pairs of nodes: of each GPU with the one of its number."""
    return [
        NcclMeeting(rail, ((one, rails.gpus[one][rail]), (other, rails.gpus[other][rail])))
        for one, other in pairs
        for rail in sorted(rails.gpus[one].keys() & rails.gpus[other].keys())
    ]


def check_nccl(ask: Ask, rails: Rails, environ: Mapping[str, str], partners: int) -> NcclCheck:
    """Have GPUs of one number send to each other, each with those of so many other nodes.

    Parameters
    ----------
    ask
        Tells the nodes what to do.
    rails
        The GPUs that may send.
    environ
        NCCL's variables.
    partners
        How many other nodes each one meets.
    """
    found = ask({host: {"nccl": "version"} for host in rails.gpus})
    by_version: dict[int | None, list[str]] = defaultdict(list)
    for host, answer in sorted(found.items()):
        by_version[answer["version"] if answer else None].append(host)
    hosts = max((of_one for version, of_one in by_version.items() if version), key=len, default=[])
    rounds = [meetings_of(pairs, rails) for pairs in circle(hosts, partners)]
    remarks = [*_remarks_on(rails.busy, by_version)]
    if not any(rounds):
        return NcclCheck(remarks=remarks or ["not measured: that takes GPUs of the same number on two nodes"])
    course = _Course(ask, environ)
    for meetings in rounds:
        course.hold(meetings)
    return NcclCheck(course.readings, {str(meeting): why for meeting, why in course.failures.items()}, remarks)


def _remarks_on(busy: Sequence[str], by_version: Mapping[int | None, Sequence[str]]) -> Iterator[str]:
    """Yield where nothing is measured, and why, given the nodes by the version of their NCCL."""
    if busy:
        yield f"not measured beside other processes: {abbreviated(busy)}"
    if gone := by_version.get(None):
        yield f"not measured on {abbreviated(gone)}: no answer"
    if without := by_version.get(0):
        install = "CuPy finds no NCCL there; pip install nvidia-nccl-cu12, or nvidia-nccl-cu13 with CUDA 13"
        yield f"not measured on {abbreviated(without)}: {install}"
    versions = {_dotted(version): hosts for version, hosts in by_version.items() if version}
    if len(versions) > 1:
        listed = "; ".join(f"{version} on {abbreviated(hosts)}" for version, hosts in versions.items())
        yield f"only measured between nodes of one version of NCCL: {listed}"


def _dotted(version: int) -> str:
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


class _Course:
    """The meetings by now, and what came of them."""

    def __init__(self, ask: Ask, environ: Mapping[str, str]) -> None:
        self._ask = ask
        self._environ = environ
        self._n_bytes = 0
        self._strikes: Counter[DeviceId] = Counter()
        self.readings: list[LinkReading] = []
        self.failures: dict[NcclMeeting, str] = {}

    def hold(self, meetings: Sequence[NcclMeeting]) -> None:
        """Hold meetings, in which each node has one partner at most."""
        held = [meeting for meeting in meetings if not self._is_left_out(meeting)]
        begun = self._step(held, lambda _, rank: {"rank": rank}, START_S, self._environ)
        joined = list(self._step(list(begun), lambda meeting, _: {"id": begun[meeting][0]["id"]}, JOIN_S))
        if joined and not self._n_bytes:
            first = self._bursts(joined, FIRST_BYTES)
            if first:
                rate = statistics.median(each.n_bytes / each.duration_s for each in first)
                self._n_bytes = bytes_for(rate, MOST_BYTES)
        if self._n_bytes:
            self.readings += self._bursts(joined, self._n_bytes)

    def _is_left_out(self, meeting: NcclMeeting) -> bool:
        """Tell whether one of the ends has failed with three others: it would hold everybody up each time."""
        for host, gpu in meeting.ends:
            if self._strikes[host, gpu] >= MOST_FAILURES:
                self.failures[meeting] = f"left out, since {host} gpu {gpu} has failed with {MOST_FAILURES} others"
                return True
        return False

    def _bursts(self, meetings: Iterable[NcclMeeting], n_bytes: int) -> list[LinkReading]:
        """Have them send one rail after another, since GPUs of a node may share a NIC."""
        readings = []
        by_rail: dict[int, list[NcclMeeting]] = defaultdict(list)
        for meeting in meetings:
            if meeting not in self.failures:
                by_rail[meeting.rail].append(meeting)
        for of_rail in by_rail.values():
            for meeting, answers in self._step(of_rail, lambda *_: {"n_bytes": n_bytes}, BURSTS_S).items():
                ways = (meeting.ends, meeting.ends[::-1])
                for ((sender, _), (receiver, _)), answer in zip(ways, answers, strict=True):
                    link = (0, sender, receiver, answer["seconds"], n_bytes, 0.0, 0.0, meeting.path)
                    readings.append(LinkReading(*link))
        return readings

    def _step(
        self,
        meetings: Iterable[NcclMeeting],
        command: Callable[[NcclMeeting, int], object],
        within_s: float,
        environ: Mapping[str, str] | None = None,
    ) -> dict[NcclMeeting, Answers]:
        """Tell both ends of each meeting what to do, given it and their rank; return what those answered that could."""
        meetings = list(meetings)
        commands: dict[str, dict[str, object]] = defaultdict(dict)
        for meeting in meetings:
            for rank, (host, gpu) in enumerate(meeting.ends):
                commands[host][gpu] = command(meeting, rank)
        asked = {host: {"commands": each, "within_s": within_s, "environ": environ} for host, each in commands.items()}
        said = self._ask({host: {"nccl": each} for host, each in asked.items()})
        done = {}
        for meeting in meetings:
            troubles = [f"{host}: {why}" for host, gpu in meeting.ends if (why := _trouble(said[host], gpu))]
            if troubles:
                self.failures[meeting] = "; ".join(troubles)
                self._strikes.update(meeting.ends)
            else:
                one, other = ((said[host] or {})["answers"][gpu] for host, gpu in meeting.ends)
                done[meeting] = (one, other)
        return done


def _trouble(answer: Mapping[str, Any] | None, gpu: str) -> str:
    return "no answer" if answer is None else str(answer["failures"].get(gpu, ""))
