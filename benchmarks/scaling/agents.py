"""Many agents that dial one controller: the real listener, channels and nodes; of the agents only what is measured.

Each of some processes stands for a hundred agents: they dial, send heartbeats and answer pings with the agent's own
code. Run as a program it is one of these processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent import ALIVE
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import Dialled, Invitation
from laggard.resilience.allocation.agent_listener import AgentListener, Callers
from laggard.resilience.allocation.discovery import DialledAgent
from laggard.resilience.allocation.step import REDIAL_S
from laggard.resilience.decision.pace import Pace
from laggard.resilience.nodes.node import Node

__all__ = ["AgentsSeen", "measure_agents"]

PER_PROCESS = 100
DEADLINE_S = 120.0


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
        From the first invitation to the last agent's first heartbeat, in seconds.
    start_busy_s
        Processor seconds of the controller until then.
    load
        Processor seconds per second of the controller, with nothing but heartbeats.
    pinged_s
        From the first ping to the last answer.
    back_s
        From the moment when all connections were dropped until all have been dialled again.
    megabytes
        What the controller's memory grew by.
    """

    n_agents: int
    interval_s: float
    started_s: float
    start_busy_s: float
    load: float
    pinged_s: float
    back_s: float
    megabytes: float


def measure_agents(n_agents: int, for_s: float = 20.0) -> AgentsSeen:
    """Have that many agents dial, and watch their heartbeats for some seconds."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    me, changed = psutil.Process(), threading.Condition()
    before_bytes = me.memory_info().rss
    pace = Pace.of_job(n_agents)
    command = [sys.executable, "-P", "-m", "benchmarks.scaling.agents", str(pace.interval_s)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    listener = AgentListener("127.0.0.1", Callers())
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        for _ in range(-(-n_agents // PER_PROCESS))
    ]
    for process in processes:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        process.stdout.readline()  # it has loaded everything
    began_s, busy_s = time.monotonic(), _busy_s(me)
    nodes = [_invite(listener, number, processes[number // PER_PROCESS], changed) for number in range(n_agents)]
    for process in processes:
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(b"\n")
        process.stdin.flush()
    started_s = _until(lambda: all(node.has_started for node in nodes), began_s)
    start_busy_s = _busy_s(me) - busy_s
    busy_s, since_s = _busy_s(me), time.monotonic()
    time.sleep(for_s)
    load = (_busy_s(me) - busy_s) / (time.monotonic() - since_s)
    began_s = time.monotonic()
    for node in nodes:
        node.ping()
    pinged_s = _until(lambda: all(node.answered for node in nodes), began_s)
    megabytes = (me.memory_info().rss - before_bytes) / 1e6
    began_s = time.monotonic()
    for node in nodes:
        _channel_of(node).detach()
    back_s = _until(lambda: all(_channel_of(node).is_connected for node in nodes), began_s)
    for node in nodes:
        node.close()
    for node in nodes:
        node.wait(DEADLINE_S)
    listener.close()
    return AgentsSeen(n_agents, pace.interval_s, started_s, start_busy_s, load, pinged_s, back_s, megabytes)


def _invite(
    listener: AgentListener, number: int, process: subprocess.Popen[bytes], changed: threading.Condition
) -> Node:
    channel = Channel(partial(_await_connection, process))
    assert process.stdin is not None  # noqa: S101
    process.stdin.write(listener.invite(channel).to_line())
    process.stdin.flush()
    return Node(NodeRecord(f"node{number}", "127.0.0.1", ()), DialledAgent(process, channel), changed)


def _await_connection(process: subprocess.Popen[bytes], channel: Channel) -> bool:
    channel.wait(REDIAL_S)
    return channel.is_connected or process.poll() is None


def _channel_of(node: Node) -> Channel:
    agent = node._agent
    assert isinstance(agent, DialledAgent)  # noqa: S101
    return agent.channel


def _busy_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _until(done: Callable[[], bool], began_s: float) -> float:
    while not done():
        if time.monotonic() > began_s + DEADLINE_S:
            raise TimeoutError(f"not within {DEADLINE_S:g} s")
        time.sleep(0.01)
    return time.monotonic() - began_s


def _be_agents(interval_s: float) -> None:
    print("loaded", flush=True)
    lines = iter(sys.stdin.buffer.readline, b"\n")  # the last one that comes
    invitations = [Invitation(**json.loads(line)) for line in lines]
    agents = [Dialled(invitation, sys.stdin.fileno()) for invitation in invitations]
    selector = selectors.DefaultSelector()
    for agent in agents:
        selector.register(agent.commands, selectors.EVENT_READ, agent)
    threading.Thread(target=_send_heartbeats, args=(agents, interval_s), daemon=True).start()
    n_left = len(agents)
    while n_left:
        for key, _ in selector.select():
            data = os.read(key.fd, 1 << 16)
            if not data:
                selector.unregister(key.fd)
                n_left -= 1
            elif b'"ping"' in data:
                key.data.answers.write(json.dumps({"event": "pong", "time_s": time.time()}) + "\n")
    for agent in agents:
        agent.finish()


def _send_heartbeats(agents: list[Dialled], interval_s: float) -> None:
    with contextlib.suppress(BrokenPipeError):  # the end
        while True:
            for agent in agents:
                time.sleep(interval_s / len(agents))
                agent.answers.write(ALIVE)


if __name__ == "__main__":
    _be_agents(float(sys.argv[1]))
