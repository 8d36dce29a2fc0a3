"""``python -m laggard.resilience.ray.driver ADDRESS``: laggard's one driver on a Ray cluster that it did not start.

With ``--devices`` it asks each node for the names of its GPUs.

It does what needs Ray, so that the controller does not load Ray:

- it **starts** each node's agent, as ``srun`` or ``ssh`` would: a task on the node passes on its join token, with which
  the agent dials, and lasts as long as the agent;
- it **holds** nodes: a placement group reserves everything that a node offers, so that neither the program nor anybody
  else is placed there. Every living node that the launch does not use is held: the reserve, the excluded nodes, and
  nodes that join the cluster later;
- it **watches** the cluster, and tells the controller of nodes that join it or that Ray drains.

Nothing outlives this process and the controller: when a driver is gone, Ray ends its tasks and removes its placement
groups, and an agent ends when its connection has closed, too. The controller sends JSON, one command per packet,
through the socket that is our standard input. The answers are JSON lines on standard output:

===================================  ============================================================================
command                              answer
===================================  ============================================================================
(none yet)                           ``loaded``; ``answered``: the head is up; ``{"event": "nodes", "nodes": [...]}``
``{"do": "start-agent", "node",      ``{"event": "agent-ended", "mark": ...}``, once it, its node or its task has ended
"mark", "after", "token"}``
``{"do": "clear", "node", "mark"}``  none; ends whatever the agent with that mark has left on a node
``{"do": "hold", "free": [...]}``    ``{"event": "held", "alive": [...], "missed": [...]}``
(none)                               ``{"event": "joined", "nodes": [...]}``; ``{"event": "draining", "nodes": {...}}``
===================================  ============================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol, cast

import psutil
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from laggard.collectors.device import listed_devices
from laggard.resilience.agent import DIALS
from laggard.resilience.agent.handshake import MACHINE_VARIABLE
from laggard.resilience.agent.processes import AGENT_MARK, end_marked
from laggard.resilience.ray.allocation import ASK_FOR_DEVICES
from laggard.resilience.ray.private_api import draining_nodes, ping_head

HEAD_DEADLINE_S = 5.0
DEVICES_DEADLINE_S = 20.0
REFRESH_INTERVAL_S = 1.0
HOLD_DEADLINE_S = 20.0
POLL_S = 0.1
CLEAR_DEADLINE_S = 5.0
PACKET_BYTES = 1 << 18
NODE_ID = "ray.io/node-id"
# Ray kills a worker together with its children, but an agent should shut down in order. So the agent is not a child of
# the worker; it ends when its pipe and its connection close.
_DETACH = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
_AGENT = ("-m", "laggard.resilience.agent.agent", DIALS)


class Send(Protocol):
    """Sends an answer to the controller."""

    def __call__(self, event: str, **fields: object) -> None:
        """Send an event with its fields."""


def run_agent(mark: str, after: str, token: str) -> None:
    """Start an agent on this node, once what has the mark ``after`` is ended, and wait until it has ended."""
    if after and not end_marked(AGENT_MARK, after, CLEAR_DEADLINE_S):
        raise RuntimeError("processes of the node's old agent do not end")
    agent = subprocess.Popen(
        [sys.executable, "-P", "-c", _DETACH, sys.executable, "-P", *_AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={**os.environ, AGENT_MARK: mark},
    )
    agent.wait()  # only the process that detaches the agent
    start_up = cast("IO[bytes]", agent.stdin)  # it stays open as long as we live
    start_up.write(token.encode())
    start_up.flush()
    cast("IO[bytes]", agent.stdout).read()  # it never writes anything there


class Agents:
    """The agents that were started on nodes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._marks: dict[Any, str] = {}  # of the tasks that last as long as they do

    def start(self, node_id: str, mark: str, after: str, token: str) -> None:
        """Start one on a node."""
        remote: Any = ray.remote(run_agent)
        options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity(node_id))
        self._marks[options.remote(mark, after, token)] = mark

    def look(self) -> None:
        """Tell the controller which have ended."""
        ended, _ = ray.wait([*self._marks], num_returns=len(self._marks), timeout=0) if self._marks else ([], [])
        for task in ended:
            self._send("agent-ended", mark=self._marks.pop(task))


def clear(node_id: str, mark: str) -> None:
    """Begin to end what an agent has left on a node; if the node is gone, nothing is left."""
    remote: Any = ray.remote(end_marked)
    options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity(node_id))
    options.remote(AGENT_MARK, mark, CLEAR_DEADLINE_S)


def node_affinity(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Return the strategy that places something on this node or fails."""
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


class HeldNodes:
    """Holds every living node that is not free."""

    def __init__(self) -> None:
        self._free: set[str] | None = None
        self._held: dict[str, PlacementGroup] = {}

    def hold_all_but(self, free: Sequence[str]) -> dict[str, list[str]]:
        """Hold all other nodes; return which are alive, and which could not be held because somebody else uses them."""
        # A node that has just crashed is neither held nor known to be dead, so it is waited for too.
        self._free = set(free)
        until_s = time.monotonic() + HOLD_DEADLINE_S
        while True:
            alive = self.refresh()
            missed = [node_id for node_id, group in self._held.items() if not group.wait(POLL_S)]
            if not missed or time.monotonic() > until_s:
                return {"alive": sorted(alive), "missed": missed}

    def refresh(self) -> set[str]:
        """Begin to hold new nodes, release those that are free now, and return which are alive."""
        alive = {node["NodeID"]: node for node in living_nodes()}
        if self._free is None:
            return set(alive)
        for node_id in [held for held in self._held if held in self._free or held not in alive]:
            remove_placement_group(self._held.pop(node_id))
        for node_id in (
            alive.keys() - self._free - self._held.keys() - draining_nodes().keys()
        ):  # Ray uses none of those
            if offered := schedulable_resources(alive[node_id]):
                self._held[node_id] = placement_group([offered], bundle_label_selector=[{NODE_ID: node_id}])
        return set(alive)


class Watch:
    """Tells the controller which nodes join the cluster, and which ones Ray drains."""

    def __init__(self, send: Send, known: Sequence[dict[str, Any]], *, with_devices: bool) -> None:
        self._send = send
        self._known = {node["NodeID"] for node in known}
        self._with_devices = with_devices
        self._draining: dict[str, float] = {}

    def look(self) -> None:
        """Look at the cluster once."""
        alive = living_nodes()
        new = [node for node in alive if node["NodeID"] not in self._known]
        self._known |= {node["NodeID"] for node in new}
        if new:  # their answers may take a while
            threading.Thread(target=self._tell_of, args=(new,), name="joined", daemon=True).start()
        ids = {node["NodeID"] for node in alive}
        draining = {node_id: until_s for node_id, until_s in draining_nodes().items() if node_id in ids}
        if draining != self._draining:
            self._draining = draining
            self._send("draining", nodes=draining)

    def _tell_of(self, new: Sequence[dict[str, Any]]) -> None:
        found = devices_of(new) if self._with_devices else {}
        self._send("joined", nodes=[describe(node, found) for node in new])


def living_nodes() -> list[dict[str, Any]]:
    """Return Ray's records of the nodes that are up."""
    nodes = cast("list[dict[str, Any]]", ray.nodes())  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def schedulable_resources(node: dict[str, Any]) -> dict[str, float]:
    """Return what a node offers to tasks and actors."""
    hidden = ("node:", "object_store_memory")
    return {name: amount for name, amount in node["Resources"].items() if amount and not name.startswith(hidden)}


def runs_programs(node: dict[str, Any]) -> bool:
    """Return whether a node offers processors or GPUs; without either, nothing of a program runs there."""
    return any(node["Resources"].get(name) for name in ("CPU", "GPU"))


def raylet_devices() -> tuple[list[str] | None, str]:
    """Return the devices that the raylet of this worker was given (None: those of its machine), and its machine."""
    # Ray changes the variable in its workers, and a raylet is the parent of its workers.
    environment = psutil.Process(os.getppid()).environ()
    return listed_devices(environment), environment.get(MACHINE_VARIABLE, "")


def devices_of(nodes: Sequence[dict[str, Any]]) -> dict[str, tuple[list[str], str]]:
    """Return the names of each node's GPUs and its machine, by its ID.

    The GPUs of a node that does not say so in time are numbers.
    """
    counts = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in nodes}
    remote: Any = ray.remote(raylet_devices)
    asked = {
        remote.options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity(node_id)).remote(): node_id
        for node_id, count in counts.items()
        if count
    }
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=DEVICES_DEADLINE_S) if asked else ([], [])
    told: dict[str, tuple[list[str] | None, str]] = {}
    for reference in answered:
        with contextlib.suppress(ray.exceptions.RayError, psutil.Error):  # the node is gone, or hides its processes
            told[asked[reference]] = ray.get(reference)
    found: dict[str, tuple[list[str], str]] = {}
    for node_id, count in counts.items():
        names, machine = told.get(node_id, (None, ""))
        found[node_id] = (names or [str(number) for number in range(count)])[:count], machine
    return found


def describe(node: dict[str, Any], found: Mapping[str, tuple[list[str], str]]) -> dict[str, Any]:
    """Return what the controller needs to know of a node."""
    resources = node["Resources"]
    devices, machine = found.get(node["NodeID"], ([], ""))
    return {
        "id": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "hostname": node["NodeManagerHostname"],
        "name": node.get("NodeName", ""),
        "devices": devices,
        "head": "node:__internal_head__" in resources,
        "offers": runs_programs(node),
        "machine": machine,
    }


def main(arguments: Sequence[str]) -> int:
    """Serve until the controller's socket closes."""
    # Ray prints the logs of lost nodes to standard output, whatever its settings. Keep them out of our answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    sending = threading.Lock()

    def send(event: str, **fields: object) -> None:
        with sending:
            answers.write(json.dumps({"event": event, **fields}) + "\n")

    send("loaded")
    ping_head(arguments[0], HEAD_DEADLINE_S)
    send("answered")
    ray.init(address=arguments[0], namespace="laggard", log_to_driver=False, logging_level=logging.ERROR)
    nodes = living_nodes()
    with_devices = ASK_FOR_DEVICES in arguments
    found = devices_of(nodes) if with_devices else {}
    send("nodes", nodes=[describe(node, found) for node in nodes])
    agents, held = Agents(send), HeldNodes()
    watch = Watch(send, nodes, with_devices=with_devices)
    controller = socket.socket(fileno=0)
    while True:
        if not select.select([controller], [], [], REFRESH_INTERVAL_S)[0]:
            agents.look()
            held.refresh()
            watch.look()
            continue
        packet = controller.recv(PACKET_BYTES)
        if not packet:
            ray.shutdown()
            return 0
        command = json.loads(packet)
        match command["do"]:
            case "start-agent":
                agents.start(command["node"], command["mark"], command["after"], command["token"])
            case "clear":
                clear(command["node"], command["mark"])
            case "hold":
                send("held", **held.hold_all_but(command["free"]))
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
