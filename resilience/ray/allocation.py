"""The nodes of a Ray cluster that is already running, as an allocation."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from laggard.kvstore.control import NodeRecord
from laggard.logs import last_line_of
from laggard.resilience.agent.channel import Channel
from laggard.resilience.allocation.agent_listener import AgentListener
from laggard.resilience.allocation.base import (
    AgentProcess,
    Allocation,
    clear_this_machine,
    device_variables,
    start_here,
)
from laggard.resilience.allocation.discovery import DialledAgent
from laggard.resilience.allocation.network import is_this_machine
from laggard.resilience.errors import AllocationError, UsageError
from laggard.resilience.wire import encode
from laggard.system.ports import listens

ASK_FOR_DEVICES = "--devices"
DRIVER_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.ray.driver")
START_S = 60.0
ANSWER_S = 6.0
HOLD_DEADLINE_S = 25.0
CLOSE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node in Ray's records."""

    id: str  # the node's ID in Ray
    address: str  # as its raylet reports them
    hostname: str
    name: str
    devices: tuple[str, ...]  # names of the GPUs that Ray assigns on the node, as in `CUDA_VISIBLE_DEVICES` there
    head: bool  # whether Ray's head runs on the node
    offers: bool = True  # whether Ray places tasks on it: whether it has processors or GPUs for them
    machine: str = ""  # what the site calls its machine, if it is not the host name, which is a pod's

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> RayNode:
        """Return a node as the driver describes it."""
        return cls(**{**fields, "devices": tuple(fields["devices"])})


def records_of(nodes: Sequence[RayNode], virtual_gpus: int) -> dict[str, NodeRecord]:
    """Return a record of each node by its ID in Ray, in the same order. Pure."""
    # Nodes go by their host names. If two share a host name, all go by their names in Ray, or else by their addresses.
    kind = naming(nodes)
    return {node.id: _record_of(node, getattr(node, kind), virtual_gpus) for node in nodes}


def naming(nodes: Sequence[RayNode]) -> str:
    """Return the first of the attributes of nodes that tells them apart. Pure."""
    kinds = {kind: [getattr(node, kind) for node in nodes] for kind in ("hostname", "name", "address")}
    return next(kind for kind, names in kinds.items() if all(names) and len(set(names)) == len(names))


def _record_of(node: RayNode, name: str, virtual_gpus: int) -> NodeRecord:
    # What can run nothing has no devices either, whatever is asked for.
    virtual = tuple(map(str, range(virtual_gpus))) if node.offers else ()
    return NodeRecord(name, node.address, virtual or node.devices)


class DriverProcess:
    """The process that is laggard's driver on the cluster; see :mod:`laggard.resilience.ray.driver`."""

    def __init__(self, address: str, *, with_devices: bool = True) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit():
            raise UsageError(f"RAY_ADDRESS={address} is not an address: give host:port of the head, or --wlm=local")
        if not listens(host, int(port)):
            raise UsageError(f"RAY_ADDRESS={address} does not answer: is the cluster up? --wlm=local runs without it")
        self._address = address  # `host:port` of the cluster's head
        ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with its_end:
            self._process = subprocess.Popen(
                [*DRIVER_COMMAND, address, *([ASK_FOR_DEVICES] if with_devices else [])],
                stdin=its_end.fileno(),
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # Those that have joined since, until somebody takes them from here
        self.joined: queue.SimpleQueue[RayNode] = queue.SimpleQueue()
        # The nodes that Ray drains by their IDs, and until when (Unix time; 0: no limit)
        self.draining: Mapping[str, float] = {}
        self._channels: dict[str, Channel] = {}  # to agents, by their marks
        threading.Thread(target=self._read, name="ray-driver", daemon=True).start()
        if (handshake := self._handshake()) is None:
            reason = self._last_error_line()
            self._process.kill()
            self.close()
            raise UsageError(f"RAY_ADDRESS={address} is not a Ray cluster that laggard can use: {reason}")
        self.nodes = tuple(map(RayNode.of_json, handshake["nodes"]))  # the nodes when it began

    @property
    def pid(self) -> int:
        """The driver's process ID."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the driver has not ended."""
        return self._process.poll() is None

    def start_agent(self, node_id: str, mark: str, after: str, token: str, channel: Channel) -> None:
        """Start the agent of a node, once nothing with the mark ``after`` is left there; Ray says when it has ended."""
        self._channels[mark] = channel
        self._send({"do": "start-agent", "node": node_id, "mark": mark, "after": after, "token": token})

    def hold_all_but(self, node_ids: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Hold all nodes but these; return which are alive, and which could not be held."""
        self._send({"do": "hold", "free": list(node_ids)})
        if (answer := self._next_answer(HOLD_DEADLINE_S)) is None:
            raise AllocationError(f"the Ray cluster at {self._address} is lost: {self._last_error_line()}")
        return frozenset(answer["alive"]), frozenset(answer["missed"])

    def clear(self, node_id: str, mark: str) -> None:
        """Begin to end what the agent with that mark has left on a node."""
        self._send({"do": "clear", "node": node_id, "mark": mark})

    def close(self) -> None:
        """Leave the cluster. Closing twice does nothing."""
        self._control.close()
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _send(self, command: Mapping[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the driver has ended: no answer will come
            self._control.send(json.dumps(command).encode())

    def _read(self) -> None:
        with cast("IO[bytes]", self._process.stdout) as lines:
            for line in lines:
                match (answer := json.loads(line))["event"]:
                    case "joined":
                        for node in answer["nodes"]:
                            self.joined.put(RayNode.of_json(node))
                    case "draining":
                        self.draining = answer["nodes"]
                    case "agent-ended":
                        self._channels.pop(answer["mark"]).abandon()
                    case _:
                        self._answers.put(answer)
        self._answers.put(None)

    def _next_answer(self, deadline_s: float) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=deadline_s)
        except queue.Empty:
            return None

    def _handshake(self) -> dict[str, Any] | None:
        # Loading Ray and joining take long on a busy machine; a head that is up answers soon.
        for deadline_s in (START_S, ANSWER_S, START_S):
            if (answer := self._next_answer(deadline_s)) is None:
                break
        return answer

    def _last_error_line(self) -> str:
        if self._process.poll() is None:
            return "no answer in time"
        self._stderr.seek(0)
        return last_line_of(self._stderr.read()) or "no message"


class RayAllocation(Allocation):
    """The nodes of a Ray cluster that is already running; the primary is this machine.

    Other nodes that offer neither processors nor GPUs are left out: nothing of a program runs there.
    """

    def __init__(self, address: str, virtual_gpus: int) -> None:
        self.address = address  # `host:port` of the cluster's head
        self.driver = DriverProcess(address, with_devices=virtual_gpus == 0)
        here = [node for node in self.driver.nodes if is_this_machine(node.address)]
        if not here:
            self.driver.close()
            names = " or ".join(node.hostname for node in self.driver.nodes if node.head)
            raise UsageError(f"this machine is not a node of the Ray cluster at {address}: start laggard on {names}")
        primary = next((node for node in here if node.head), here[0])
        others = sorted(
            (node for node in self.driver.nodes if node is not primary and node.offers), key=lambda node: node.name
        )
        records = records_of([primary, *others], virtual_gpus)
        # Whether the primary offers neither, so that it only holds State and the controller
        self.head_only = not primary.offers
        self.ids = {record.hostname: node_id for node_id, record in records.items()}  # their IDs in Ray, by host name
        # All nodes, the primary first; those that have been taken in since come last
        self.nodes = tuple(records.values())
        self._naming = naming([primary, *others])
        self._machines = {records[node.id].hostname: node.machine for node in (primary, *others)}
        self._virtual_gpus = virtual_gpus  # virtual devices of each node, or 0 to use the GPUs that Ray has
        self._job = secrets.token_hex(8)
        self._marks = {record.hostname: self._mark(record) for record in self.nodes}
        self._listener = AgentListener(self.nodes[0].address, len(self.nodes))

    def take_in(self, node: RayNode) -> NodeRecord | None:
        """Return a record of a node that has joined the cluster; None if it is of no use, or was known before."""
        # One with the name and the address of a node that was lost is that node: it comes back as lost nodes do.
        known = {record.hostname: record.address for record in self.nodes}
        name = getattr(node, self._naming)
        if not node.offers:
            return None
        if known.get(name) == node.address:
            self.ids[name], self._machines[name] = node.id, node.machine
            return None
        name = node.address if not name or name in known else name
        if name in known:
            return None
        record = _record_of(node, name, self._virtual_gpus)
        self.ids[name], self._machines[name] = node.id, node.machine
        self._marks[name] = self._mark(record)
        self.nodes = (*self.nodes, record)
        return record

    def _mark(self, node: NodeRecord) -> str:
        return f"{self._job}-{node.hostname}"

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a node."""
        return start_here() if node == self.nodes[0] else self._start(node.hostname)

    def start_agent_again(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a lost node anew, once nothing of its old one is left there."""
        old = self._marks[node.hostname]
        # A mark of its own: a command that still ends processes with the old one leaves this agent alone.
        self._marks[node.hostname] = f"{old.partition('/')[0]}/{secrets.token_hex(4)}"
        return self._start(node.hostname, after=old)

    def _start(self, host: str, after: str = "") -> DialledAgent:
        channel = self._listener.channel(lambda _: self.driver.alive)
        token = encode(self._listener.admit(channel)).decode()
        self.driver.start_agent(self.ids[host], self._marks[host], after, token, channel)
        return DialledAgent(self.driver.pid, channel)

    def machine_of(self, host: str) -> str:
        """Return what the site calls the machine on which a node is now."""
        return self._machines.get(host) or host

    def clear(self, node: NodeRecord) -> None:
        """End whatever is left on a node whose agent is gone; on another machine this call only begins it."""
        if node == self.nodes[0]:
            clear_this_machine(node)
        else:
            self.driver.clear(self.ids[node.hostname], self._marks[node.hostname])

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices."""
        return device_variables(node, directory, virtual=self._virtual_gpus > 0)

    def close(self) -> None:
        """Leave the cluster as it was."""
        self._listener.close()
        self.driver.close()
