"""How a job begins: which nodes it uses, given what earlier jobs have found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from laggard.resilience.decision.case import Case
from laggard.resilience.decision.enough import too_few, without
from laggard.resilience.decision.events import End, JobStatus, NodeLost, Settings
from laggard.resilience.decision.reasons import Fact
from laggard.resilience.decision.roster import MEMORY_S, Exclusion, Roster
from laggard.resilience.decision.strikes import MAX_STRIKES, Strike, recent_strikes, strikes_of


def begin(
    settings: Settings,
    hosts: Sequence[str],
    remembered: Sequence[Exclusion],
    now_s: float,
    strikes: Sequence[Strike] = (),
    *,
    with_devices: frozenset[str] = frozenset(),
    head_only: bool = False,
    missing: Collection[str] = (),
    drained: Collection[str] = (),
) -> JobStatus | End:
    """Return the status of a job that begins, or its end where exclusions by earlier jobs leave too few nodes."""
    # Nodes that were only lost are back, unless they are missing.
    quarantine_s = settings.quarantine_s
    hosts, primary = hosts[1:] if head_only else hosts, hosts[0]
    known = [e for e in remembered if e.host in hosts and e.until_s(quarantine_s) > now_s - MEMORY_S]
    over = [e for e in known if e.until_s(quarantine_s) <= now_s]
    back = [e for e in known if e in over or (e.lost and strikes_of(e.host, strikes, now_s) < MAX_STRIKES)]
    excluded = tuple(replace(e, lost=False) for e in known if e not in back)
    out = {e.host for e in excluded}
    last = {*(e.host for e in back), *drained} - {primary, *out}
    good = (*(h for h in hosts if h not in out | last), *(h for h in hosts if h in last))
    served = {e.host: e.until_s(quarantine_s) for e in over if not e.lost}
    of_others = (strike for strike in strikes if strike.host not in served)
    counting = recent_strikes((*of_others, *(Strike(*each) for each in served.items())), now_s)
    past = tuple(kept for e in back if (kept := e.kept()))
    needed = with_devices if not with_devices.isdisjoint(hosts[: settings.nodes]) else frozenset[str]()
    roster = Roster((), good, excluded, past, primary, needed)
    status = JobStatus(without(settings, roster, frozenset(), now_s), now_s, strikes=counting)
    for host in (host for host in hosts if host in missing):
        status = _begin_without(settings, status, host)
    if fewer := too_few(settings, status):
        return End((fewer, Fact("quarantined", tuple(sorted(out)))) if out else (fewer,))
    return status


def _begin_without(settings: Settings, status: JobStatus, host: str) -> JobStatus:
    """Return the status with a node lost before the first launch: a strike, as for every loss."""
    case = Case(settings, status, NodeLost(host), status.launched_s, progressed=False)
    return replace(case.status_without(frozenset({host}), lost=True), strikes=case.with_strike(host))
