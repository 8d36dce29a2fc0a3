"""Turns verdicts that a device is slow into verdicts that say whether to restart: now, later, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from laggard.collectors.device import DeviceId
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.incidents import Incidents, key_of
from laggard.detectors.economics.launch_cost import LaunchCost
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restart_decision import Decision, Incident, Tradeoff
from laggard.detectors.errors import StateVersionError
from laggard.detectors.evidence import Price, Reason, StillSlow, Subject, Weighed
from laggard.detectors.verdict import Evidence, Severity, Verdict
from laggard.kvstore.control import LaunchRecord, Signs

Episodes = Callable[[DeviceId], Episode | None]

_VERSION = 5
_SLOW_CHIP = 1.07  # as for a verdict by peers alone: chips of one model differ by less


@dataclass(frozen=True, slots=True)
class Grounds:
    """What is known of the devices, besides the verdicts."""

    episodes: Episodes  # gives the episode that a device is in
    # The names of devices that stay with them when they move, of those that have one
    identities: Mapping[DeviceId, str] = field(default_factory=dict)
    min_slowdown: float = 1.0  # the smallest slowdown that matters
    # Given the newest verdict on a device, returns why no restart should be made now, whatever it costs, if there is
    # such a reason
    why_not: Callable[[Verdict], Reason | None] = lambda _: None
    holds_up: bool = True  # whether the job waits for the devices for which there is such a reason


class Restarts:
    """Weighs what the job loses by each slow device against what a restart costs, round by round."""

    def __init__(self, given: RestartCost | None = None) -> None:
        self.given = given  # as the parameter; may be changed while the job runs
        self.begin(LaunchRecord(0, (), ()))
        self._incidents = Incidents()
        self._newest: dict[Subject, Verdict] = {}

    def begin(self, launch: LaunchRecord) -> None:
        """Begin a launch."""
        self._launch = launch
        self._n_reserve = len(launch.reserve)
        self._cost = LaunchCost(launch)

    def restore(self, kept: Mapping[str, Any], now_s: float, *, same_run: bool) -> None:
        """Continue with what :meth:`to_state` returned in an earlier launch, of the same job or of another one."""
        if kept["version"] != _VERSION:
            raise StateVersionError(kept["version"], _VERSION)
        cost, incidents = LaunchCost(self._launch, kept["cost"]), Incidents.from_state(kept["incidents"])
        hosts = frozenset(node.hostname for node in self._launch.nodes) if same_run else frozenset()
        incidents.forget_hosts(hosts, now_s)
        newest = [Verdict.of_fields(fields) for fields in kept["verdicts"]]
        by_subject = {(verdict.host, verdict.gpu): verdict for verdict in newest}
        if not by_subject.keys() >= {*incidents.open}:
            raise ValueError("an incident lacks its verdict")
        self._cost, self._incidents, self._newest = cost, incidents, by_subject

    def to_state(self) -> dict[str, Any]:
        """Return what the next launch should know, as plain values."""
        verdicts = [verdict.to_fields() for subject, verdict in self._newest.items() if subject in self._incidents.open]
        return {
            "version": _VERSION,
            "cost": self._cost.to_state(),
            "incidents": self._incidents.to_state(),
            "verdicts": verdicts,
        }

    @property
    def has_progress(self) -> bool:
        """Whether the program has shown progress in this launch."""
        return self._cost.has_progress

    def note_signs(self, signs: Signs, now_s: float) -> None:
        """Note what has been seen of the launch by now."""
        self._cost.note(signs, now_s)
        if signs.n_reserve is not None:
            self._n_reserve = signs.n_reserve

    def weigh(
        self, verdicts: Sequence[Verdict], grounds: Grounds, judged: Collection[DeviceId], now_s: float
    ) -> list[Verdict]:
        """Return the round's verdicts: those given, with what to do about them, and those on open incidents."""
        price = self._price(now_s)
        tradeoff = self._tradeoff(price, grounds.min_slowdown, now_s)
        devices = {subject: self._devices_of(subject, judged) for subject in self._incidents.open}
        episodes = {subject: _episode_of(each, grounds.episodes) for subject, each in devices.items() if each}
        # Who is less slow than matters costs nothing.
        known = {
            subject: None if each is None else each.slowdown if each.slowdown >= grounds.min_slowdown else 1.0
            for subject, each in episodes.items()
        }
        usual = {subject for subject, each in episodes.items() if each is not None and each.is_usual}
        ended = self._incidents.advance(known, now_s, usual)
        over = {subject: found for subject, found in ended.items() if found.is_news}
        found = [Verdict(*each, 1.0, "well again", Evidence(*each, over[each])) for each in over]
        new = {(verdict.host, verdict.gpu): verdict for verdict in verdicts if _is_incident(verdict)}
        for subject, verdict in new.items():
            self._begin(subject, verdict, grounds, judged, now_s)
            if not price.cost_s:
                self._incidents.ask_again(subject)
        found += [verdict for verdict in verdicts if not _is_incident(verdict)]
        for subject, decision in self._decisions({*new, *known}, tradeoff, grounds, now_s).items():
            incident = self._incidents.incident(subject)
            in_s = None if math.isinf(decision.in_s) else decision.in_s
            weighed = Weighed(price, incident.lost_s, incident.slow_s, in_s, now_s, decision.why)
            if self._incidents.tell(subject, now_s, is_new=subject in new, must=decision.restart, in_s=decision.in_s):
                found.append(_decided(self._newest[subject], weighed))
            elif decision.restart:
                found.append(_due(self._newest[subject], incident, weighed))
        return found

    def _begin(
        self, subject: Subject, verdict: Verdict, grounds: Grounds, judged: Collection[DeviceId], now_s: float
    ) -> None:
        known = _episode_of(self._devices_of(subject, judged), grounds.episodes)
        episode = known or Episode(now_s, verdict.slowdown, 0.0)
        at_times = verdict.evidence.at_times
        slowdown = verdict.slowdown if known is None or at_times else 1 / (1 - known.share_lost)
        identity, place = grounds.identities.get((subject[0], subject[1] or ""), key_of(subject)), self._place(subject)
        self._incidents.begin(subject, slowdown, episode, now_s, identity=identity, place=place, at_times=at_times)
        self._newest[subject] = verdict

    def _decisions(
        self, judged: Collection[Subject], tradeoff: Tradeoff, grounds: Grounds, now_s: float
    ) -> dict[Subject, Decision]:
        """Decide on the open incidents; a restart leaves out others as well, as far as there are reserves."""
        incidents = self._incidents
        found = {}
        for subject in [each for each in incidents.open if each in judged]:
            why_not = grounds.why_not(self._newest[subject])
            found[subject] = incidents.decide(
                subject, tradeoff, now_s, why_not, holds_up=grounds.holds_up or why_not is None
            )
        hosts = {host for (host, _), decision in found.items() if decision.restart}
        for subject, decision in found.items():
            has_room = subject[0] in hosts or tradeoff.n_reserve is None or len(hosts) < tradeoff.n_reserve
            if hosts and has_room and not decision.restart and incidents.join(subject, tradeoff, now_s):
                hosts.add(subject[0])
                found[subject] = Decision(restart=True, in_s=0.0, why=Reason("made anyway"))
        return found

    def _price(self, now_s: float) -> Price:
        return self._cost.price(now_s, None if self.given is None else self.given.cost_s)

    def _tradeoff(self, price: Price, min_slowdown: float, now_s: float) -> Tradeoff:
        launch = self._launch
        remaining_s = None if launch.ends_s is None or launch.ends_s < now_s else launch.ends_s - now_s
        if self.given is not None:
            remaining_s = self.given.remaining_s
        return Tradeoff(
            cost=RestartCost(price.cost_s, remaining_s),
            n_nodes=len(launch.nodes),
            n_reserve=self._n_reserve if launch.nodes else None,
            min_slowdown=min_slowdown,
            is_stated=price.source == "given",
        )

    def _devices_of(self, subject: Subject, judged: Collection[DeviceId]) -> list[DeviceId]:
        host, gpu = subject
        if gpu is None:
            return [device for device in judged if device[0] == host]
        return [device for device in [(host, gpu)] if device in judged]

    def _place(self, subject: Subject) -> str:
        """Return the place of a device or node in the launch, by which ranks usually go; a rank is its own."""
        host, gpu = subject
        if gpu is not None and gpu.startswith("rank "):
            return gpu
        for number, node in enumerate(self._launch.nodes):
            if node.hostname == host:
                return f"{number}/{node.devices.index(gpu) if gpu in node.devices else gpu}"
        return key_of(subject)


def _is_incident(verdict: Verdict) -> bool:
    return verdict.action == "restart" or verdict.evidence.at_times


def _episode_of(devices: Collection[DeviceId], episodes: Episodes) -> Episode | None:
    """Return the episode of a device, or that of a node's typical device; ``None`` if none of them is slow."""
    # A node is only as slow as its slowest device if that is slower than a healthy one may be.
    found = [episodes(device) for device in devices]
    if not any(found):
        return None
    well = Episode(math.nan, 1.0, 0.0)
    ordered = sorted((each or well for each in found), key=lambda each: each.slowdown)
    return ordered[-1] if ordered[-1].slowdown >= _SLOW_CHIP else ordered[len(found) // 2]


def _decided(verdict: Verdict, weighed: Weighed) -> Verdict:
    """Return a new verdict with what to do about it; of one that is slow at times the severity stays open."""
    evidence = replace(verdict.evidence, weighed=weighed)
    action = verdict.action if verdict.evidence.at_times else "restart" if weighed.restart else "report"
    return replace(verdict, action=action, evidence=evidence)


def _due(last: Verdict, incident: Incident, weighed: Weighed) -> Verdict:
    """Return the verdict on an incident for which a restart has become worth it."""
    severity: Severity = "slow" if last.severity == "suspect" else last.severity
    found = StillSlow(incident.slowdown, incident.at_times)
    evidence = replace(last.evidence, found=found, weighed=weighed)
    return replace(last, slowdown=incident.slowdown, severity=severity, action="restart", evidence=evidence)
