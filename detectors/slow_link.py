"""SlowLinkDetector: pairs of nodes exchange transfers, and the node whose NIC or cable is slow is found."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Self

from laggard.collectors.device import VIRTUAL_DEVICES
from laggard.collectors.errors import NoInterfaceError
from laggard.collectors.group import Startable, checked_rate
from laggard.collectors.links.board import LinkBoard
from laggard.collectors.links.collector import LAUNCH, LINK_TIME, LinkCollector, stride_of, tell_failure
from laggard.collectors.ray_actors import NodeActors, start_on_every_node
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.history_store import HistoryStore
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.launch_signs import LaunchSigns
from laggard.detectors.judging.link_readings import KEPT, LinkReadings
from laggard.detectors.judging.sources import StreamSource
from laggard.detectors.judging.watcher import Watcher
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis
from laggard.detectors.statistics.thresholds import LINKS_SHARE, VIRTUAL_MIN_SLOWDOWN, checked_budget, checked_slowdown
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord
from laggard.kvstore.state.mapping import State
from laggard.settings import number

LINK_MIN_SLOWDOWN = 1.05  # as for devices
MAX_INTRUSION = 0.005  # docs/links.md
# Virtual devices are for trying things out.
VIRTUAL_MAX_INTRUSION = 0.25


class SlowLinkDetector(Startable):
    """Finds the nodes that send or receive slowly, and asks for a relaunch without them.

    Use it in the program, around the work: ``with SlowLinkDetector(): ...``, or start the program with ``--detect
    slow-link``. All nodes probe at one moment: each meets three others, one after another, and sends to each
    for about 30 ms while that one sends to it. A slow pair, or a slow group below one switch, is only reported.

    Parameters
    ----------
    collection_rate
        Seconds from one round to the next; if the rounds take more than ``max_intrusion``, some are skipped.
    state
        Where incidents are kept; ``None``: each launch starts without those of the one before.
    leaves
        The leaf switch of each node, by host; ``None``: as ``--groups`` or Slurm's topology says, if they do.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times: by default 1.05, and 1.5 on nodes with virtual devices.
    false_alarm_budget
        Bound on the probability of any false verdict of the job, by probes, sections and links together; launches
        share a tenth of it.
    restart_cost
        What a restart costs, in seconds or as a :class:`RestartCost`, as for :class:`SlowGPUDetector`. ``None``: as
        measured. 0: at once.
    max_intrusion
        The largest share of the time that the probes may take from a job whose ranks wait for each other: by default
        0.5 %, and 25 % on nodes with virtual devices.
    interface
        Which network is probed: the first interface of each node whose name begins with one of a list, as
        ``NCCL_SOCKET_IFNAME`` has it. Empty: that of the node's address in the job.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        state: State | None = None,
        leaves: Mapping[str, str] | None = None,
        min_slowdown: float | None = None,
        false_alarm_budget: float = 1e-4,
        restart_cost: RestartCost | float | None = None,
        max_intrusion: float | None = None,
        interface: str = "",
    ) -> None:
        is_virtual = VIRTUAL_DEVICES in os.environ
        if max_intrusion is None:
            max_intrusion = VIRTUAL_MAX_INTRUSION if is_virtual else MAX_INTRUSION
        if not 0 < number(max_intrusion) <= 1:
            raise ValueError(f"max_intrusion is {max_intrusion!r}: it is a share of the time, above 0 and at most 1")
        if min_slowdown is None:
            min_slowdown = VIRTUAL_MIN_SLOWDOWN if is_virtual else LINK_MIN_SLOWDOWN
        self.collection_rate, self.max_intrusion = checked_rate(collection_rate), max_intrusion
        self._min_slowdown, self._budget = checked_slowdown(min_slowdown), checked_budget(false_alarm_budget)
        self._leaves = leaves
        self._interface = interface
        self._restarts = Restarts(RestartCost.of(restart_cost))
        self._keeper = HistoryStore(state)
        self._watcher: Watcher | None = None
        self._collectors: NodeActors | LinkCollector | None = None

    def start(self) -> Self:
        """Start a collector on every node of this launch, and the watcher.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        session = current_session()
        control = Control(session.client, session.endpoint, session.environment.launch)
        launch = control.read_launch()
        hosts = [node.hostname for node in launch.nodes]
        if len(hosts) < 2:
            return self
        leaves = self._leaves or launch.leaves
        analysis = SlowLinkAnalysis(hosts, leaves, self._budget * _share(launch.launch), self._min_slowdown)
        readings = LinkReadings(analysis, LinkBoard(control).tell_terms, time.time())
        judge = Judge(readings, self._restarts, self._keeper, KEPT)
        judge.begin(launch, str(session.environment.endpoint_file), LaunchSigns(session).read)
        interval_s = self.collection_rate * stride_of(self.collection_rate, self.max_intrusion)
        expected = [(host, "") for host in hosts]
        # From the beginning, since a node that cannot probe says so only once, perhaps before this.
        source = StreamSource(session, LINK_TIME, after="-", only={LAUNCH: str(session.environment.launch)})
        self._watcher = Watcher(
            LINK_TIME, interval_s, judge, expected=expected, failure_on=self._failure_on, source=source
        )
        self._collectors = self._place(launch)
        return self

    def stop(self) -> None:
        """Stop the watcher and the collectors. Stopping twice does nothing."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if self._collectors is not None:
            self._collectors.stop()
            self._collectors = None

    def collect_here(self) -> None:
        """Start the collector of this process's node alone."""
        self._collectors = self.links_here()

    def links_here(self) -> LinkCollector | None:
        """Start what probes the links of this process's node; nothing if it has no such interface, which is told."""
        try:
            return LinkCollector(self.collection_rate, self.max_intrusion, self._leaves, self._interface)
        except NoInterfaceError as error:
            tell_failure(error)
            return None

    def _failure_on(self, host: str) -> str:
        return self._collectors.failure_on(host) if isinstance(self._collectors, NodeActors) else ""

    def _place(self, launch: LaunchRecord) -> NodeActors | LinkCollector | None:
        """Start the collectors."""
        terms = self.collection_rate, self.max_intrusion, self._leaves, self._interface
        return start_on_every_node(launch.nodes, LinkCollector, *terms)


def _share(launch: int) -> float:
    """Return the share of the budget that a launch gets; those of all launches sum to that of links."""
    return LINKS_SHARE / ((launch + 1) * (launch + 2))
