"""One event in the course of a job, and what follows from it for the rules of the policy. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from laggard.resilience.decision.enough import is_enough, too_few, without
from laggard.resilience.decision.events import JobStatus, ProgramFailed, ProgramHung, Settings
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.strikes import MAX_STRIKES, Strike, is_shared, strikes_of, with_strike


@dataclass(frozen=True, slots=True)
class Case:
    """One event, and everything that a rule may look at."""

    settings: Settings
    status: JobStatus
    event: Any  # of the type that the rule is for
    now_s: float
    progressed: bool

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
    def stalled_since_s(self) -> float | None:
        """Since when outages have kept the job from making progress, if what a failure named does not answer now."""
        unanswered = self.event.unanswered
        if unanswered is None:
            return None
        # What serves a program on its own node may be part of it, and come back with it.
        may_be_own = unanswered.target.is_local and not unanswered.served_before
        if may_be_own and (self.progressed or not self.status.failures_in_a_row):
            return None
        before_s = None if self.progressed else self.status.stalled_since_s
        return float(unanswered.since_s if before_s is None else before_s)

    @property
    def proven(self) -> frozenset[str]:
        """The nodes in use that were found bad when they were checked, and can be spared."""
        return self.sparing(frozenset(found.host for found in self.event.evidence) & frozenset(self.roster.active))

    @property
    def unfit_reserve(self) -> frozenset[str]:
        """The nodes in reserve that were found bad when they were checked after a failure."""
        evidence = self.event.evidence if isinstance(self.event, ProgramFailed) else ()
        return frozenset(found.host for found in evidence) & frozenset(self.roster.reserve)

    @property
    def suspect(self) -> str:
        """The node that may be to blame for a failure or a hang; empty if there is none."""
        if isinstance(self.event, ProgramHung):
            return self.event.suspect
        return self.failure.host if self.failure.response == "strike" else ""

    @property
    def may_strike(self) -> bool:
        """Whether there is a suspect that may be struck out, which would help."""
        stays = isinstance(self.event, ProgramFailed) and self.failure.stays
        return self.suspect != "" and not stays

    @property
    def struck(self) -> bool:
        """Whether this is a strike against the suspect: not if several nodes fail for a reason that they share."""
        return self.may_strike and not is_shared(self.suspect, self.status.strikes, self.now_s, self.n_nodes)

    @property
    def strikes(self) -> int:
        """How many strikes the suspect has, this one included."""
        return 1 + strikes_of(self.suspect, self.status.strikes, self.now_s)

    @property
    def n_nodes(self) -> int:
        """How many nodes there are, but for those that were excluded before."""
        return len({*self.roster.active, *self.roster.reserve})

    @property
    def is_struck_out(self) -> bool:
        """Whether the suspect has its last strike, and the job can go on without it."""
        host = self.suspect
        if not self.struck or self.strikes < MAX_STRIKES or host not in self.roster.active:
            return False
        after = self.status_without(self.unfit_reserve | {host})
        return host not in after.roster.active and too_few(self.settings, after) is None

    @property
    def is_kept_out(self) -> bool:
        """Whether a node that could come back must serve its quarantine first, and the job does not wait for it."""
        host = self.event.host
        exclusion = self.roster.exclusion_of(host)
        if exclusion is None or self.now_s >= exclusion.until_s(self.settings.quarantine_s):
            return False
        struck_out = strikes_of(host, self.status.strikes, self.now_s) >= MAX_STRIKES
        return not exclusion.lost or (struck_out and self.status.waits_since_s is None)

    @property
    def strikes_after(self) -> tuple[Strike, ...]:
        """The strikes after this failure or hang."""
        return self.with_strike(self.suspect) if self.may_strike else self.status.strikes

    def with_strike(self, host: str) -> tuple[Strike, ...]:
        """Return the strikes after another one against a node."""
        return with_strike(host, self.status.strikes, self.now_s, self.n_nodes)

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
