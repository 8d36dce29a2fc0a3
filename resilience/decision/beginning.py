"""How a job begins: which nodes it uses, given what earlier jobs have found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from laggard.resilience.decision.enough import too_few, without
from laggard.resilience.decision.events import End, JobStatus, Settings
from laggard.resilience.decision.ledger import Incident, evidence_against, loss_of, recent
from laggard.resilience.decision.reasons import Fact
from laggard.resilience.decision.roster import MEMORY_S, Exclusion, Roster


def begin(
    settings: Settings,
    hosts: Sequence[str],
    remembered: Sequence[Exclusion],
    now_s: float,
    ledger: Sequence[Incident] = (),
    *,
    with_devices: frozenset[str] = frozenset(),
    head_only: bool = False,
    missing: Collection[str] = (),
    avoided: Collection[str] = (),
) -> JobStatus | End:
    """Return the status of a job that begins, or its end where exclusions by earlier jobs leave too few nodes."""
    # Nodes that were only lost are back, unless they are missing. Those to be avoided are used last.
    quarantine_s = settings.quarantine_s
    hosts, primary = hosts[1:] if head_only else hosts, hosts[0]
    known = [e for e in remembered if e.host in hosts and e.until_s(quarantine_s) > now_s - MEMORY_S]
    over = [e for e in known if e.until_s(quarantine_s) <= now_s]
    back = [e for e in known if e in over or (e.lost and not evidence_against(e.host, ledger, now_s).is_enough)]
    excluded = tuple(replace(e, lost=False) for e in known if e not in back)
    out = {e.host for e in excluded}
    last = {*(e.host for e in back), *avoided} - {primary, *out}
    good = (*(h for h in hosts if h not in out | last), *(h for h in hosts if h in last))
    past = tuple(kept for e in back if (kept := e.kept()))
    needed = with_devices if not with_devices.isdisjoint(hosts[: settings.nodes]) else frozenset[str]()
    roster = Roster((), good, excluded, past, primary, needed)
    status = JobStatus(without(settings, roster, frozenset(), now_s), now_s, ledger=recent(ledger, now_s))
    for host in (host for host in hosts if host in missing):
        status = _begin_without(settings, status, host)
    if fewer := too_few(settings, status):
        return End((fewer, Fact("quarantined", tuple(sorted(out)))) if out else (fewer,))
    return status


def _begin_without(settings: Settings, status: JobStatus, host: str) -> JobStatus:
    """Return the status with a node lost before the first launch."""
    now_s = status.launched_s
    roster = without(settings, status.roster, frozenset({host}), now_s, lost=True)
    return replace(status, roster=roster, ledger=(*status.ledger, loss_of(host, status.ledger, now_s)))
