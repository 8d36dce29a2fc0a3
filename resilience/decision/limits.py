"""What ends a job instead of a relaunch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laggard.resilience.decision.enough import too_few
from laggard.resilience.decision.events import JobStatus, Settings
from laggard.resilience.decision.reasons import Fact

STORM_WINDOW_S = 3600.0  # of `--max-restarts-per-hour`


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job instead of a relaunch.

    ``reached`` takes the settings and the status that the job would have after the relaunch; it returns the reason to
    end, or None.
    """

    when: str
    reached: Callable[[Settings, JobStatus], Fact | None]


def _no_progress(settings: Settings, status: JobStatus) -> Fact | None:
    since_s = status.launched_s if status.stalled_since_s is None else status.stalled_since_s
    stalled_s = status.launched_s - since_s
    return Fact("no progress", number=stalled_s) if stalled_s >= settings.give_up_after_s else None


def _budget(settings: Settings, status: JobStatus) -> Fact | None:
    if settings.max_restarts is None or len(status.relaunched_s) <= settings.max_restarts:
        return None
    return Fact("restarts used up", number=settings.max_restarts)


def _storm(settings: Settings, status: JobStatus) -> Fact | None:
    recent = sum(moment > status.launched_s - STORM_WINDOW_S for moment in status.relaunched_s)
    if recent <= settings.max_restarts_per_hour:
        return None
    return Fact("hourly restarts used up", number=settings.max_restarts_per_hour)


TOO_FEW = Limit(
    "fewer than `--nodes` good nodes are left, or with `--exhaust-resources` none that can run the program (none with "
    "devices, if the job began with any), and there are not enough lost ones to wait for",
    too_few,
)
LIMITS: Sequence[Limit] = (
    TOO_FEW,
    Limit("there has been no progress since the first relaunch `--give-up-after` seconds ago", _no_progress),
    Limit("`--max-restarts` is used up", _budget),
    Limit("`--max-restarts-per-hour` is used up", _storm),
)
