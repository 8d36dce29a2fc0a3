"""One event in the course of a job, and what follows from it for the rules of the policy. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from laggard.kvstore.checkpoints.complete import Newest
from laggard.resilience.decision.enough import is_enough, too_few, without
from laggard.resilience.decision.events import JobStatus, ProgramFailed, ProgramHung, RanksReplaced, Settings
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.ledger import (
    BAR,
    PROOF_STAKE,
    REPEATED,
    STAKES,
    Incident,
    NodeEvidence,
    evidence_against,
    loss_of,
    recent,
)
from laggard.resilience.decision.placement import Below
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.row import Setback

AGAIN_AND_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One event, and everything that a rule may look at."""

    settings: Settings
    status: JobStatus
    event: Any  # of the type that the rule is for
    now_s: float
    progressed: bool
    below: Below  # draws by chance

    @property
    def roster(self) -> Roster:
        """Which node does what."""
        return self.status.roster

    @property
    def excludable(self) -> frozenset[str]:
        """The accused hosts that may be excluded: those in use or in reserve that can be spared."""
        accused: frozenset[str] = self.event.hosts
        return self.sparing(accused & {*self.roster.active, *self.roster.reserve})

    @property
    def failure(self) -> Failure:
        """Why the program failed."""
        failure: Failure = self.event.failure
        return failure

    @property
    def proven(self) -> frozenset[str]:
        """The nodes in use that were found bad when they were checked, and can be spared."""
        return self.sparing(frozenset(found.host for found in self.event.evidence) & frozenset(self.roster.active))

    @property
    def unfit_reserve(self) -> frozenset[str]:
        """The nodes in reserve that were found bad when they were checked after a failure."""
        evidence = self.event.evidence if isinstance(self.event, ProgramFailed | RanksReplaced) else ()
        return frozenset(found.host for found in evidence) & frozenset(self.roster.reserve)

    @property
    def suspect(self) -> str:
        """The node where a failure or a hang began; empty if that is not known, or it was on or between several."""
        if isinstance(self.event, ProgramHung):
            return self.event.suspect
        failure = self.failure
        return "" if failure.stays or failure.several or failure.is_shared else failure.host

    @property
    def setback(self) -> Setback:
        """The failure or hang, as a part of the row."""
        ran_s = max(0.0, self.now_s - self.status.launched_s)
        if isinstance(self.event, ProgramHung):
            return Setback(self.now_s, self.suspect, "hang", ran_s, "unknown", self.event.course)
        failure = self.failure
        course = self.event.course
        if failure.was_killed:  # from outside, which no checkpoint does
            course = replace(course, saves=())
        return Setback(self.now_s, self.suspect, failure.fingerprint, ran_s, failure.kind, course)

    @property
    def row(self) -> tuple[Setback, ...]:
        """The failures since the last progress, this one included."""
        return (*(() if self.progressed else self.status.row), self.setback)

    @property
    def went_back(self) -> tuple[Newest, ...]:
        """The checkpoints that were set aside since the last progress."""
        return () if self.progressed else self.status.went_back

    @property
    def survived(self) -> frozenset[str]:
        """The places of earlier failures after which the job made progress."""
        row = self.status.row if self.progressed else ()
        return self.status.survived | {each.place for each in row}

    @property
    def can_move(self) -> bool:
        """Whether what failed may run on another node in the next launch."""
        if not self.suspect:
            return False
        return len(self.roster.active) > 1 if self.settings.places_ranks else self.may_set_aside(self.suspect)

    @property
    def ledger(self) -> tuple[Incident, ...]:
        """The ledger after this failure or hang."""
        known = recent(self.status.ledger, self.now_s)
        if not self.suspect:
            return known
        placement = self.status.placement
        hung = isinstance(self.event, ProgramHung)
        stake = PROOF_STAKE if not hung and self.failure.is_proof else STAKES[self.setback.kind]
        stake *= 1.0 if len(self.row) == 1 else REPEATED
        device = "" if hung else self.failure.device
        return (*known, Incident(self.suspect, self.now_s, stake, device, placement.drawn, placement.devices_drawn))

    @property
    def acquitted(self) -> tuple[Incident, ...]:
        """The ledger without what the failures of the row have staked: they were the program's on whatever node."""
        row = {(each.host, each.time_s) for each in self.status.row}
        known = recent(self.status.ledger, self.now_s)
        return tuple(replace(each, stake=0.0) if (each.host, each.time_s) in row else each for each in known)

    @property
    def convicted(self) -> NodeEvidence | None:
        """The node in use where this began, if there is enough evidence and the job can go on without it."""
        host = self.suspect
        if host not in self.roster.active:
            return None
        found = evidence_against(host, self.ledger, self.now_s)
        after = self.status_without(self.unfit_reserve | {host})
        goes_on = host not in after.roster.active and too_few(self.settings, after) is None
        return found if found.is_enough and goes_on else None

    @property
    def evidence(self) -> tuple[NodeEvidence, ...]:
        """What the ledger has against the suspect, if this is not the first failure there."""
        if not self.suspect:
            return ()
        found = evidence_against(self.suspect, self.ledger, self.now_s)
        return (found,) if found.failures > 1 and found.value >= 1 else ()

    def may_set_aside(self, host: str) -> bool:
        """Return whether an active node can wait in the reserve while the program runs without it."""
        if host == self.roster.primary or host not in self.roster.active:
            return False
        return is_enough(self.settings, self.roster.setting_aside(host))

    @property
    def set_aside(self) -> str:
        """The node that goes to the reserve, as the program twice failed on it and is not placed by us; or empty."""
        host, row = self.suspect, self.row
        again = len(row) > 1 and row[-2].host == host and bool(host)
        return host if again and not self.settings.places_ranks and self.may_set_aside(host) else ""

    @property
    def fails_most(self) -> bool:
        """Whether failures begin on the suspect again and again, and fewer on all other nodes together."""
        own = sum(each.host == self.suspect for each in self.ledger)
        return own >= AGAIN_AND_AGAIN and 2 * own > len(self.ledger) and self.may_set_aside(self.suspect)

    @property
    def relieved(self) -> JobStatus | None:
        """The status with a node of the reserve in the place of a drained one; None: none can take its place."""
        host: str = self.event.word.host
        after = self.status_without(frozenset({host}), lost=True)
        is_like = len(after.roster.active) == len(self.roster.active)
        is_in_use = self.settings.resilient and host in self.roster.active and host != self.roster.primary
        return after if is_in_use and is_like else None

    @property
    def is_kept_out(self) -> bool:
        """Whether a node that could come back must serve its quarantine first, and the job does not wait for it."""
        host = self.event.host
        exclusion = self.roster.exclusion_of(host)
        if exclusion is None or self.now_s >= exclusion.until_s(self.settings.quarantine_s):
            return False
        is_convicted = evidence_against(host, self.status.ledger, self.now_s).is_enough
        return not exclusion.lost or (is_convicted and self.status.waits_since_s is None)

    def with_verdicts(self, hosts: frozenset[str]) -> tuple[Incident, ...]:
        """Return the ledger after verdicts against nodes, which are proof enough."""
        accused = [Incident(host, self.now_s, BAR) for host in sorted(hosts)]
        return (*recent(self.status.ledger, self.now_s), *accused)

    def with_loss(self, host: str) -> tuple[Incident, ...]:
        """Return the ledger after the loss of a node."""
        return (*recent(self.status.ledger, self.now_s), loss_of(host, self.status.ledger, self.now_s))

    def status_without(self, hosts: frozenset[str], *, lost: bool = False) -> JobStatus:
        """Return the job's status with some hosts excluded, and free places filled from the reserve."""
        # There may be free places although no host is excluded: a job that went on with fewer nodes grows back.
        return replace(self.status, roster=without(self.settings, self.roster, hosts, self.now_s, lost=lost))

    def reserve_without(self, hosts: frozenset[str]) -> JobStatus:
        """Return the job's status with some hosts of the reserve excluded, and the nodes in use as they are."""
        n_in_use = len(self.roster.active)
        return replace(self.status, roster=self.roster.without(hosts, n_in_use, self.now_s))

    def sparing(self, hosts: frozenset[str]) -> frozenset[str]:
        """Return which of these hosts to go on without: not the primary, nor the last ones, if they are needed."""
        if is_enough(self.settings, self.roster.without(hosts, self.settings.nodes, self.now_s)):
            return hosts
        others = hosts - {self.roster.primary}
        if self.settings.exhaust_resources and not self.status_without(others).roster.can_run:
            return others - {*self.roster.active}
        return others
