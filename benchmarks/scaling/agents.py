"""The agents of a large job: the real allocation, controller's side and state server, and agents that start nothing.

:mod:`.many_agents` stands in for the ``srun`` that starts the agents of up to two thousand nodes, and for the agents.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from laggard.kvstore.server.process import StateServer
from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.discovery import DialledAgent
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.allocation.slurm import MAX_NODES_OF_STEP
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming

__all__ = ["AgentsSeen", "measure_agents"]

DEADLINE_S = 900.0
LOOK_INTERVAL_S = 0.5
PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class AgentsSeen:
    """What was measured of a number of agents.

    Attributes
    ----------
    n_agents
        How many.
    interval_s
        From one heartbeat of an agent to the next, in seconds.
    started_s
        From the start to the last agent's first heartbeat, in seconds.
    start_busy_s
        Processor seconds of the controller until then.
    agents_busy_s
        Processor seconds of the processes that stand for the agents until then.
    load
        Processor seconds per second of the controller, with nothing but heartbeats.
    pinged_s
        From the first ping to the last answer.
    back_s
        From the moment when all connections were dropped until all have been dialled again.
    back_busy_s
        Processor seconds of the controller in between.
    n_threads
        The most threads that the controller has had.
    megabytes
        What the controller's memory grew by.
    n_lost
        How many nodes were taken for lost at any time.
    """

    n_agents: int
    interval_s: float
    started_s: float
    start_busy_s: float
    agents_busy_s: float
    load: float
    pinged_s: float
    back_s: float
    back_busy_s: float
    n_threads: int
    megabytes: float
    n_lost: int


class _Srun(Transport):
    """Starts the processes that stand for the agents."""

    name = "srun"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        del host, argv
        return ["false"]  # no node has an agent of its own

    def commands_together(self, hosts: Sequence[str], argv: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        del argv
        groups = [tuple(hosts[at : at + MAX_NODES_OF_STEP]) for at in range(0, len(hosts), MAX_NODES_OF_STEP)]
        root = str(Path(__file__).parents[2])
        command = ["env", "-C", root, sys.executable, "-m", "benchmarks.scaling.many_agents"]
        return {group: [*command, ",".join(group)] for group in groups}

    def environment(self) -> dict[str, str]:
        return {}


class _Watch:
    """What the controller does beside: looks for lost nodes twice a second."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.lost: set[str] = set()
        self.n_threads = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_INTERVAL_S):
            self.n_threads = max(self.n_threads, threading.active_count())
            if self.cluster is not None:
                self.lost.update(self.cluster.lost())


def measure_agents(n_agents: int, for_s: float = 10.0) -> AgentsSeen:
    """Start that many agents, and watch their heartbeats for some seconds."""
    me = psutil.Process()
    before_bytes = me.memory_info().rss
    began_s, busy_s = time.monotonic(), _busy_s(me)
    with _cluster(n_agents) as (cluster, allocation), _Watch() as watch:
        hosts = [PRIMARY, *(node.hostname for node in allocation.nodes[1:])]
        cluster.start(Roster(tuple(hosts)))
        watch.cluster = cluster
        nodes = cluster.nodes.values()
        started_s = _until(lambda: all(node.agent.has_started for node in nodes), began_s)
        start_busy_s = _busy_s(me) - busy_s
        agents_busy_s = sum(_busy_s(psutil.Process(step.process.pid)) for step in allocation._steps)
        busy_s, since_s = _busy_s(me), time.monotonic()
        time.sleep(for_s)
        load = (_busy_s(me) - busy_s) / (time.monotonic() - since_s)
        began_s = time.monotonic()
        watch.lost.update(cluster.lost_after_ping(hosts))
        pinged_s = time.monotonic() - began_s
        megabytes = (me.memory_info().rss - before_bytes) / 1e6
        began_s, busy_s = time.monotonic(), _busy_s(me)
        channels = [agent.channel for node in nodes if isinstance(agent := node.agent._process, DialledAgent)]
        dropped = [(channel, channel._connection) for channel in channels]
        for _, connection in dropped:
            with contextlib.suppress(OSError):
                if connection is not None:
                    connection._socket.shutdown(socket.SHUT_RDWR)  # as when the network drops it
        back_s = _until(lambda: all(each._connection not in (None, former) for each, former in dropped), began_s)
        back_busy_s = _busy_s(me) - busy_s
        watch.lost.update(cluster.lost_after_ping(hosts))
        watch.cluster = None
    return AgentsSeen(
        n_agents,
        HeartbeatTiming(n_agents).interval_s,
        started_s,
        start_busy_s,
        agents_busy_s,
        load,
        pinged_s,
        back_s,
        back_busy_s,
        watch.n_threads,
        megabytes,
        len(watch.lost),
    )


@contextlib.contextmanager
def _cluster(n_agents: int) -> Iterator[tuple[Cluster, RemoteAllocation]]:
    """Discover that many nodes, and return what starts their agents, until the end of the block."""
    with contextlib.ExitStack() as last:
        folder = Path(last.enter_context(tempfile.TemporaryDirectory(prefix="laggard-agents-")))
        server = last.enter_context(StateServer.start(folder / "state", job="agents"))
        (folder / "nodes").mkdir(mode=0o700)
        hosts = [PRIMARY, *(f"node{number:05}" for number in range(n_agents))]
        allocation = RemoteAllocation(dict.fromkeys(hosts, "127.0.0.1"), _Srun(), virtual_gpus=1)
        allocation.discover(tell=print)
        files = NodeFiles({"endpoint.json": server.endpoint.to_json()}, {})
        cluster = Cluster(allocation, folder / "nodes", files, threading.Condition())
        last.callback(cluster.stop)
        yield cluster, allocation


def _busy_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _until(done: Callable[[], bool], began_s: float) -> float:
    while not done():
        if time.monotonic() > began_s + DEADLINE_S:
            raise TimeoutError(f"not within {DEADLINE_S:g} s")
        time.sleep(0.05)
    return time.monotonic() - began_s
