"""The nodes of a Ray cluster that runs already, as an allocation."""

from __future__ import annotations

import contextlib
import json
import os
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

from kvstore.control import NodeRecord
from resilience.allocation.addresses import is_this_machine
from resilience.allocation.base import AllocationError, clear_this_machine, device_variables, start_here
from resilience.node import AgentProcess
from resilience.options import UsageError
from resilience.ports import listens

__all__ = ["Carried", "Gate", "RayAllocation", "RayNode", "records_of"]

GATE_COMMAND = (sys.executable, "-m", "resilience.attached.gate")
START_S = 60.0
ANSWER_S = 6.0
HOLD_DEADLINE_S = 25.0
CLOSE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray's records have it.

    Attributes
    ----------
    id
        Ray's name of it.
    address, hostname, name
        Of its raylet.
    n_gpus
        How many GPUs Ray gives out there.
    head
        Whether Ray's head runs there.
    """

    id: str
    address: str
    hostname: str
    name: str
    n_gpus: int
    head: bool


def records_of(nodes: Sequence[RayNode], virtual_gpus: int) -> dict[str, NodeRecord]:
    """Return a record of each node by Ray's name of it; the order is the same. Pure.

    Nodes are called by their host names; where two share one, by the names that Ray was told; else by their addresses.
    """
    names = next(
        names
        for names in ([n.hostname for n in nodes], [n.name for n in nodes], [n.address for n in nodes])
        if all(names) and len(set(names)) == len(names)
    )
    return {
        node.id: NodeRecord(name, node.address, tuple(map(str, range(virtual_gpus or node.n_gpus))))
        for name, node in zip(names, nodes, strict=True)
    }


class Gate:
    """The process that is our driver on the cluster; see :mod:`resilience.attached.gate`.

    Parameters
    ----------
    address
        ``host:port`` of the cluster's head.

    Raises
    ------
    UsageError
        If nobody answers there within 10 s.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"RAY_ADDRESS={address} names no cluster: give host:port of its head, or --wlm=local")
        if not listens(host, int(port)):
            raise UsageError(f"RAY_ADDRESS={address} does not answer: is the cluster up? --wlm=local goes without it")
        self._address = address
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with its:
            self._process = subprocess.Popen(
                [*GATE_COMMAND, address],
                stdin=its.fileno(),
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,
            )
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="gate", daemon=True).start()
        if (greeting := self._greeting()) is None:
            why = self._last_words()
            self._process.kill()
            self.close()
            raise UsageError(f"RAY_ADDRESS={address} is no Ray cluster that we may use: {why}")
        self.nodes = tuple(RayNode(**node) for node in greeting["nodes"])

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def carry(self, node_id: str, mark: str) -> Carried:
        """Start the agent of a node."""
        its_in, our_out = os.pipe()
        our_in, its_out = os.pipe()
        try:
            self._say({"do": "carry", "node": node_id, "mark": mark}, its_in, its_out)
        finally:
            os.close(its_in)
            os.close(its_out)
        return Carried(self.pid, os.fdopen(our_out, "wb"), os.fdopen(our_in, "rb"))

    def hold_all_but(self, node_ids: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Hold all nodes but these; return who is alive, and who could not be held.

        Raises
        ------
        AllocationError
            If the cluster's head is lost.
        """
        self._say({"do": "hold", "free": list(node_ids)})
        if (answer := self._hear(HOLD_DEADLINE_S)) is None:
            raise AllocationError(f"the Ray cluster at {self._address} is lost: {self._last_words()}")
        return frozenset(answer["alive"]), frozenset(answer["missed"])

    def clear(self, node_id: str, mark: str) -> None:
        """Begin to end what the agent of that mark has left on a node."""
        self._say({"do": "clear", "node": node_id, "mark": mark})

    def close(self) -> None:
        """Leave the cluster. Closing twice does nothing."""
        self._control.close()
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()

    def _say(self, command: Mapping[str, object], *pipes: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: nobody answers
            socket.send_fds(self._control, [json.dumps(command).encode()], pipes)

    def _read(self) -> None:
        with cast("IO[bytes]", self._process.stdout) as lines:
            for line in lines:
                self._heard.put(json.loads(line))
        self._heard.put(None)

    def _hear(self, deadline_s: float) -> dict[str, Any] | None:
        try:
            return self._heard.get(timeout=deadline_s)
        except queue.Empty:
            return None

    def _greeting(self) -> dict[str, Any] | None:
        # A busy machine takes its time to load Ray, and to join; a head that is there answers soon.
        for deadline_s in (START_S, ANSWER_S, START_S):
            if (answer := self._hear(deadline_s)) is None:
                break
        return answer

    def _last_words(self) -> str:
        if self._process.poll() is None:
            return "it does not answer in time"
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "not a word")


@dataclass(frozen=True, slots=True)
class Carried:
    """An agent that the gate speaks with: to a :class:`resilience.node.Node` it is a process of ours."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]

    def wait(self, timeout: float | None = None) -> int:
        """Return at once: the end of ``stdout`` tells the agent's."""
        del timeout
        return 0

    def kill(self) -> None:
        """Do nothing: an agent whose pipe was closed ends by itself, or with its node."""


class RayAllocation:
    """The nodes of a Ray cluster that runs already; the primary is this machine.

    Parameters
    ----------
    address
        ``host:port`` of the cluster's head.
    virtual_gpus
        Virtual devices of each node; 0 where Ray's GPUs are to be used.

    Raises
    ------
    UsageError
        If there is no such cluster, or this machine is none of its nodes.
    """

    def __init__(self, address: str, virtual_gpus: int) -> None:
        self.address = address
        self.gate = Gate(address)
        here = [node for node in self.gate.nodes if is_this_machine(node.address)]
        if not here:
            self.gate.close()
            names = " or ".join(node.hostname for node in self.gate.nodes if node.head)
            raise UsageError(
                f"this machine is no node of the Ray cluster at {address}: start laggard on one of {names}"
            )
        primary = next((node for node in here if node.head), here[0])
        others = sorted((node for node in self.gate.nodes if node is not primary), key=lambda node: node.name)
        records = records_of([primary, *others], virtual_gpus)
        self.ids = {record.hostname: node_id for node_id, record in records.items()}
        self.nodes = tuple(records.values())
        self._virtual = virtual_gpus > 0
        self._mark = secrets.token_hex(8)

    def muster(self) -> None:
        """Do nothing: Ray has told what each node has."""

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a node, its standard input and output piped to us."""
        if node == self.nodes[0]:
            return start_here()
        return self.gate.carry(self.ids[node.hostname], self._mark_of(node))

    def clear(self, node: NodeRecord) -> None:
        """End whatever a node whose agent is gone has left; on another machine that is only begun here."""
        if node == self.nodes[0]:
            clear_this_machine(node)
        else:
            self.gate.clear(self.ids[node.hostname], self._mark_of(node))

    def is_ending(self) -> bool:
        """Whether the resource manager is ending the whole job: Ray has no such word."""
        return False

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return nothing: Ray runs already."""
        del node
        return []

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices."""
        return device_variables(node, directory, virtual=self._virtual)

    def close(self) -> None:
        """Leave the cluster as it was."""
        self.gate.close()

    def _mark_of(self, node: NodeRecord) -> str:
        return f"{self._mark}-{node.hostname}"
