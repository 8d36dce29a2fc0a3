"""When a job that went on with fewer nodes should relaunch on its own, since others are back.

By the break-even rule: as soon as running with fewer nodes, while there were others in reserve, has cost as much as a
relaunch does. Whatever the job's end, that costs at most twice as much as knowing it would have.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from laggard.detectors.economics.restart_cost import RestartCost, cost_in_use
from laggard.resilience.controller.launches import Launches
from laggard.resilience.decision.events import Settings
from laggard.resilience.decision.roster import Roster


class Growth:
    """Watches for how long a launch has had to do with fewer nodes than there are."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings  # what the user asked for
        self._clock = clock  # monotonic seconds
        self._since: tuple[int, int, float] | None = None  # launch, nodes that there could be, and since when

    def pays(self, roster: Roster, launches: Launches) -> bool:
        """Return whether a relaunch with the nodes in reserve pays by now."""
        n_now = len(roster.active)
        n_then = min(self._settings.nodes, n_now + len(roster.reserve))
        if not self._settings.grow_back or n_then == n_now or launches.program is None:
            self._since = None
            return False
        now_s = self._clock()
        if self._since is None or self._since[:2] != (launches.number, n_then):
            self._since = (launches.number, n_then, now_s)
        return RestartCost(cost_in_use(launches.restart_cost_s())).worthwhile(n_then / n_now, now_s - self._since[2])
