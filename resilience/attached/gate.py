"""``python -m resilience.attached.gate ADDRESS``: our one driver on a Ray cluster that is not ours.

It does two things that need Ray, for a controller that is better off without it:

- it **carries** the pipe of a node's agent there and back, as ``srun`` or ``ssh`` would: an actor on the node starts
  the agent and speaks with it;
- it **holds** nodes: all that a node offers is reserved by a placement group of ours, so that neither the program nor
  anybody else is given anything there. That is done to every living node which the launch does not use: the reserve,
  the excluded, and those that join the cluster later.

Nothing of it outlives this process: Ray ends the actors and gives the placement groups back when a driver is gone, and
an agent ends when its pipe closes. The controller sends JSON, a packet a command, through the socket that is our
standard input; we answer in JSON lines on standard output:

==================================  =============================================================================
it is told                          it answers
==================================  =============================================================================
(nothing yet)                       ``loaded``; ``answered``: there is a head; ``{"event": "nodes", "nodes": [...]}``
``{"do": "carry", "node", "mark"}``  with the agent's own words, on two pipes whose ends come with the packet
``{"do": "clear", "node", "mark"}``  nothing: it ends on a node what an agent of that mark has left
``{"do": "hold", "free": [...]}``   ``{"event": "held", "alive": [...], "missed": [...]}``
==================================  =============================================================================
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
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from resilience.greeting import LEASE_S
from resilience.leftovers import AGENT_MARK, end_marked

__all__ = ["main"]

HEAD_DEADLINE_S = 5.0
LOOK_INTERVAL_S = 1.0
HOLD_DEADLINE_S = 20.0
POLL_S = 0.1
CLOSE_DEADLINE_S = 6.0
CLEAR_DEADLINE_S = 5.0
PACKET_BYTES = 1 << 18
NODE_ID = "ray.io/node-id"
# Ray kills a worker's children with it, and an agent should end in order. So it is no child: its closed pipe ends it.
_ORPHAN = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
_AGENT = ("-m", "resilience.agent", str(LEASE_S))
# What Ray says when a node, or the actor there, is gone.
_LOST = (RayActorError, ActorUnschedulableError, ObjectLostError)


class Carrier:
    """An actor on a node: starts its agent, and speaks with it."""

    def __init__(self, mark: str) -> None:
        self._agent = subprocess.Popen(
            [sys.executable, "-c", _ORPHAN, sys.executable, *_AGENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={**os.environ, AGENT_MARK: mark},
        )
        self._agent.wait()  # only the process that makes the agent an orphan

    @ray.method(concurrency_group="there")
    def say(self, data: bytes) -> None:
        """Write to the agent."""
        stdin = cast("IO[bytes]", self._agent.stdin)
        with contextlib.suppress(BrokenPipeError):  # its end is told by the other pipe
            stdin.write(data)
            stdin.flush()

    @ray.method(concurrency_group="there")
    def close(self) -> None:
        """Close the agent's pipe: it ends."""
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", self._agent.stdin).close()

    @ray.method(concurrency_group="back")
    def hear(self) -> Iterator[bytes]:
        """Yield what the agent writes, until it ends."""
        for line in cast("IO[bytes]", self._agent.stdout):  # noqa: UP028 - Ray sends something to what yields
            yield line


def carry(node_id: str, mark: str, there: int, back: int) -> None:
    """Start an agent on a node and carry its pipe, in threads of their own."""
    decorate: Any = ray.remote  # its types know nothing of concurrency groups
    remote = decorate(num_cpus=0, concurrency_groups={"there": 1, "back": 1})(Carrier)
    actor = remote.options(scheduling_strategy=on(node_id)).remote(mark)
    name = node_id[:8]
    carrier = threading.Thread(target=_carry_back, args=(actor, back), name=f"back-{name}", daemon=True)
    carrier.start()
    threading.Thread(target=_carry_there, args=(actor, there, carrier), name=f"there-{name}", daemon=True).start()


def _carry_there(actor: Any, pipe: int, back: threading.Thread) -> None:
    with os.fdopen(pipe, "rb") as lines, contextlib.suppress(*_LOST):
        for line in lines:
            actor.say.remote(line)
        actor.close.remote()
        back.join(CLOSE_DEADLINE_S)  # until the agent has ended what it started, then itself
    ray.kill(actor)


def _carry_back(actor: Any, pipe: int) -> None:
    with os.fdopen(pipe, "wb", buffering=0) as answers, contextlib.suppress(*_LOST, BrokenPipeError):
        for reference in actor.hear.options(num_returns="streaming").remote():
            answers.write(ray.get(reference))


def clear(node_id: str, mark: str) -> None:
    """Begin to end what an agent has left on a node; where the node is gone, nothing is left."""
    remote: Any = ray.remote(end_marked)
    remote.options(num_cpus=0, max_retries=0, scheduling_strategy=on(node_id)).remote(mark, CLEAR_DEADLINE_S)


def on(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Return the strategy that places something on a node or nowhere."""
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


class Holder:
    """Holds every living node that is not free."""

    def __init__(self) -> None:
        self._free: set[str] | None = None
        self._held: dict[str, PlacementGroup] = {}

    def hold_all_but(self, free: Sequence[str]) -> dict[str, list[str]]:
        """Hold all others; return who is alive, and who could not be held because somebody else uses it.

        A node that has just crashed is neither held nor known to be dead; it is waited for, too.
        """
        self._free = set(free)
        until_s = time.monotonic() + HOLD_DEADLINE_S
        while True:
            alive = self.look()
            missed = [node_id for node_id, group in self._held.items() if not group.wait(POLL_S)]
            if not missed or time.monotonic() > until_s:
                return {"alive": sorted(alive), "missed": missed}

    def look(self) -> set[str]:
        """Begin to hold nodes that are new, let go of those that are free now; return who is alive."""
        alive = {node["NodeID"]: node for node in living_nodes()}
        if self._free is None:
            return set(alive)
        for node_id in [held for held in self._held if held in self._free or held not in alive]:
            remove_placement_group(self._held.pop(node_id))
        for node_id in alive.keys() - self._free - self._held.keys():
            if offered := offer_of(alive[node_id]):
                self._held[node_id] = placement_group([offered], bundle_label_selector=[{NODE_ID: node_id}])
        return set(alive)


def living_nodes() -> list[dict[str, Any]]:
    """Return Ray's records of the nodes that are up."""
    nodes = cast("list[dict[str, Any]]", ray.nodes())  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def offer_of(node: dict[str, Any]) -> dict[str, float]:
    """Return what a node offers to tasks and actors."""
    hidden = ("node:", "object_store_memory")
    return {name: amount for name, amount in node["Resources"].items() if amount and not name.startswith(hidden)}


def describe(node: dict[str, Any]) -> dict[str, Any]:
    """Return what the controller needs to know of a node."""
    resources = node["Resources"]
    return {
        "id": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "hostname": node["NodeManagerHostname"],
        "name": node.get("NodeName", ""),
        "n_gpus": int(resources.get("GPU", 0)),
        "head": "node:__internal_head__" in resources,
    }


def main(arguments: Sequence[str]) -> int:
    """Serve until the controller's socket closes."""
    # Ray writes the last words of lost nodes to standard output, whatever it is told: they are not for the controller.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(event: str, **fields: object) -> None:
        answers.write(json.dumps({"event": event, **fields}) + "\n")

    say("loaded")
    GcsClient(address=arguments[0]).get_all_node_info(timeout=HEAD_DEADLINE_S)
    say("answered")
    ray.init(address=arguments[0], namespace="laggard", log_to_driver=False, logging_level=logging.ERROR)
    say("nodes", nodes=[describe(node) for node in living_nodes()])
    holder = Holder()
    controller = socket.socket(fileno=0)
    while True:
        if not select.select([controller], [], [], LOOK_INTERVAL_S)[0]:
            holder.look()
            continue
        packet, pipes, _, _ = socket.recv_fds(controller, PACKET_BYTES, 2)
        if not packet:
            ray.shutdown()
            return 0
        command = json.loads(packet)
        match command["do"]:
            case "carry":
                carry(command["node"], command["mark"], *pipes)
            case "clear":
                clear(command["node"], command["mark"])
            case "hold":
                say("held", **holder.hold_all_but(command["free"]))
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
