"""What ends a job instead of a relaunch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laggard.resilience.decision.enough import too_few
from laggard.resilience.decision.events import JobStatus, Settings
from laggard.resilience.decision.reasons import Fact

MAX_LAUNCHES_WITHOUT_PROGRESS = 3  # the third shows that it was neither chance nor one node: docs/restart.md
STORM_WINDOW_S = 3600.0  # of `--max-restarts-per-hour`


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job instead of a relaunch.

    ``reached`` takes the settings and the status that the job would have after the relaunch; it returns the reason to
    end, or None.
    """

    when: str
    reached: Callable[[Settings, JobStatus], Fact | None]


def _no_progress(_: Settings, status: JobStatus) -> Fact | None:
    if status.launches_without_progress < MAX_LAUNCHES_WITHOUT_PROGRESS:
        return None
    return Fact("no progress", number=status.launches_without_progress)


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
    Limit("the last three launches made no progress", _no_progress),
    Limit("`--max-restarts` is used up", _budget),
    Limit("`--max-restarts-per-hour` is used up", _storm),
)
