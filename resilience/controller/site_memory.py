"""What a job learns from the site's memory of nodes, and what it adds to it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.site import Sighting, standings
from laggard.resilience.errors import NodeHistoryError
from laggard.resilience.record import wording
from laggard.resilience.record.node_history import NodeHistory

_HOUR_S = 3600.0


class SiteMemory:
    """Reads the site's memory once, when the job begins; a job without one learns nothing and adds nothing."""

    def __init__(
        self,
        history: NodeHistory | None,
        job: str,
        now_s: Callable[[], float],
        machine_of: Callable[[str], str] = str,
        pass_on: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        self._history = history
        self._job = job  # its name in the memory
        self._now_s = now_s  # returns Unix time
        self._machine_of = machine_of  # returns what the site calls a node's machine, if it knows it
        self._pass_on = pass_on  # takes a machine, and what its operators should know
        self._since_s: dict[str, float] = {}  # of the machines in use
        self.remarks: dict[str, str] = {}  # what the operators of a node should know, by host name
        self.trouble = ""  # why something could not be added, if it could not

    def suspects(self, hosts: Collection[str], tell: Callable[[str], object]) -> list[str]:
        """Return the nodes that the site's jobs had trouble with, the worst last, and tell of each."""
        if self._history is None:
            return []
        try:
            noted = self._history.read()
        except NodeHistoryError as error:
            tell(f"--node-history cannot be read: {error.reason}; the nodes are used in the order of their names")
            return []
        nodes = {self._machine_of(host): host for host in hosts}
        found = [each for each in standings(noted, self._now_s()) if each.host in nodes]
        suspects = [each for each in found if each.is_suspect]
        for each in suspects:
            tell(wording.standing(each, nodes[each.host]))
        return [nodes[each.host] for each in reversed(suspects)]

    def follow(self, before: Roster, after: Roster, why: str) -> None:
        """Note nodes that the job goes on without, if there is something to say of them."""
        now_s = self._now_s()
        gone = {*after.excluded_hosts, after.set_aside} - {*before.excluded_hosts, before.set_aside, ""}
        for host in sorted(gone) if why else ():
            self.note(host, why)
        machines = filter(None, map(self._machine_of, after.active))
        self._since_s = {machine: self._since_s.get(machine, now_s) for machine in machines}

    def remark(self, host: str, why: str) -> None:
        """Remember what the operators of a node should know, and tell them."""
        self.remarks[host] = why
        if machine := self._machine_of(host):
            self._pass_on(machine, f"{self._job}: {why}")

    def note(self, host: str, why: str) -> None:
        """Note what speaks against a node."""
        self.remark(host, why)
        if machine := self._machine_of(host):
            self._add(Sighting(machine, self._now_s(), "failed", self._job, why))

    def close(self) -> None:
        """Note for how long the nodes were used that the job still uses: that speaks for them."""
        now_s = self._now_s()
        ran = ((machine, (now_s - since_s) / _HOUR_S) for machine, since_s in self._since_s.items())
        self._add(*(Sighting(machine, now_s, "ran", self._job, hours=hours) for machine, hours in ran))

    def _add(self, *sightings: Sighting) -> None:
        if self._history is not None:
            try:
                self._history.add(self._job, *sightings)
            except NodeHistoryError as error:  # the job goes on without
                self.trouble = f"nothing can be added to --node-history: {error.reason}"
