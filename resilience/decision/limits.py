"""What ends a job instead of a relaunch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laggard.resilience.decision.enough import too_few
from laggard.resilience.decision.events import JobStatus, Settings

__all__ = ["EXIT_NO_PROGRESS", "EXIT_TOO_FEW_NODES", "LIMITS", "TOO_FEW", "Limit"]

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93
MAX_LAUNCHES_WITHOUT_PROGRESS = 3
STORM_WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job instead of a relaunch.

    ``reached`` takes the settings and the status that the job would have after the relaunch; it returns the reason to
    end, or None.
    """

    when: str
    exit_code: int
    reached: Callable[[Settings, JobStatus], str | None]


def _no_progress(_: Settings, status: JobStatus) -> str | None:
    if status.launches_without_progress < MAX_LAUNCHES_WITHOUT_PROGRESS:
        return None
    return (
        f"{status.launches_without_progress} launches in a row made no progress: no commit to State, no step reported"
    )


def _budget(settings: Settings, status: JobStatus) -> str | None:
    if settings.max_restarts is None or len(status.relaunched_s) <= settings.max_restarts:
        return None
    return f"--max-restarts={settings.max_restarts} is used up"


def _storm(settings: Settings, status: JobStatus) -> str | None:
    recent = sum(moment > status.launched_s - STORM_WINDOW_S for moment in status.relaunched_s)
    if recent <= settings.max_restarts_per_hour:
        return None
    return f"--max-restarts-per-hour={settings.max_restarts_per_hour} is used up"


TOO_FEW = Limit(
    "fewer than `--nodes` good nodes are left, or with `--exhaust-resources` none that can run the program (none with "
    "devices, if the job began with any), and there are not enough lost ones to wait for",
    EXIT_TOO_FEW_NODES,
    too_few,
)
LIMITS: Sequence[Limit] = (
    TOO_FEW,
    Limit("the last three launches made no progress", EXIT_NO_PROGRESS, _no_progress),
    Limit("`--max-restarts` is used up", EXIT_NO_PROGRESS, _budget),
    Limit("`--max-restarts-per-hour` is used up", EXIT_NO_PROGRESS, _storm),
)
