"""Nodes on which something else has started the same command: their agents dial the first one, the primary.

A node is known by its index. Its agent may be another one tomorrow, on another machine, if what started it starts it
again: it is then a returned node under the same index. While its place is taken nobody else gets it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from laggard.kvstore.client.connection import is_loopback
from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.channel import Channel
from laggard.resilience.allocation.agent_listener import AgentListener, lack_of_descriptors
from laggard.resilience.allocation.base import AgentProcess, Tell, Unmanaged, clear_this_machine, silent, start_here
from laggard.resilience.allocation.discovery import LATE_S, DialledAgent, Pending
from laggard.resilience.allocation.machines import MachineAllocation
from laggard.resilience.allocation.place import JoinSecret, Place, own_variables
from laggard.resilience.errors import NotJoinedError, UsageError
from laggard.resilience.text import abbreviated
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import Handshake
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.resilience.wire.node import JobEnded
from laggard.system.termination_message import leave

# A lost node is tried again later, and at once when its new agent comes.
ARRIVAL_S = 30.0
LAST_WORDS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An agent that has taken its place."""

    pending: Pending
    address: str  # from where it dials

    @property
    def channel(self) -> Channel:
        """What it and we say to each other."""
        return self.pending.agent.channel

    @property
    def handshake(self) -> Handshake | None:
        """What its node has, once that is known and while it is there."""
        answer = self.pending.answer
        return answer.result() if answer.done() and not self.channel.is_over else None


class JoinedAllocation(MachineAllocation):
    """Nodes that join, by their indices; this machine is the first one, and waits ``wait_s`` seconds for the others."""

    def __init__(
        self,
        place: Place,
        address: str,
        secret: JoinSecret,
        virtual_gpus: int,
        wait_s: float,
        manager: Unmanaged | None = None,
    ) -> None:
        others = {f"index{index}": "" for index in range(1, place.n_nodes)}
        super().__init__({socket.gethostname(): address, **others}, virtual_gpus)
        self.manager = manager or Unmanaged()
        self._place, self._secret, self._wait_s = place, secret, wait_s
        self._changed = threading.Condition()
        self._arrivals: dict[int, _Arrival] = {}
        self._listener: AgentListener | None = None

    def discover(self, may_miss: int = 0, tell: Tell = silent) -> dict[str, str]:
        """Wait for the agents of all other nodes, or for enough of them, and learn what each node has."""
        for name in os.environ.keys() - own_variables(os.environ).keys():
            del os.environ[name]
        if lack := lack_of_descriptors(self._place.n_nodes - 1, 0):
            tell(lack)
        self._listener = self._listen()
        missing = self._await_all(may_miss, tell)
        if len(missing) > may_miss:
            self.close()
            raise NotJoinedError(f"within {self._wait_s:g} s", missing, str(self._place))
        self._name()
        self._learn_primary()
        for index in range(1, self._place.n_nodes):
            if index in self._arrivals and (handshake := self._arrivals[index].handshake):
                self._take(index, handshake)
        self._tell_small(tell)
        return dict.fromkeys(missing, f"has not joined at {self._place}")

    def _listen(self) -> AgentListener:
        address, port, n_nodes = self.nodes[0].address, self._place.port, self._place.n_nodes
        try:
            listener = AgentListener(address, n_nodes, port=port, authority=self._secret.authority())
        except OSError as error:
            fix = "give --join=HOST:PORT with another port, on every node"
            raise UsageError(f"{address}:{port}", f"cannot be listened at ({error.strerror})", fix) from error
        for index in range(1, n_nodes):
            listener.admit_member(*self._secret.member(index), partial(self._arrive, index))
        return listener

    def _arrive(self, index: int, address: str) -> Channel | None:
        """Give an agent the place of its index, unless another one has it; in the listener's thread."""
        held = self._arrivals.get(index)
        if self._listener is None or (held is not None and not held.channel.is_over):
            return None
        longest_s = HeartbeatTiming(self._place.n_nodes).longest_s
        channel = self._listener.channel(lambda absent_s: absent_s < longest_s)
        pending = Pending(DialledAgent(0, channel))
        self._arrivals[index] = _Arrival(pending, address)
        pending.answer.add_done_callback(lambda _: self._notify())
        return channel

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait_for(self, done: Callable[[], bool], until_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(done, max(0.0, until_s - time.monotonic()))

    def _missing(self) -> list[str]:
        there = {index for index, arrival in list(self._arrivals.items()) if arrival.handshake}
        return [node.hostname for index, node in enumerate(self.nodes) if index and index not in there]

    def _misses(self, n_nodes: int) -> bool:
        return len(self._missing()) <= n_nodes

    def _await_all(self, may_miss: int, tell: Tell) -> list[str]:
        """Wait for all nodes: for the last ones of which the job can begin without not as long as for the others."""
        began_s = time.monotonic()
        first_s = HeartbeatTiming(self._place.n_nodes).first_heartbeat_s
        for wait_s, n_missing in ((LATE_S, 0), (first_s, 0), (self._wait_s, may_miss)):
            self._wait_for(partial(self._misses, n_missing), began_s + min(wait_s, self._wait_s))
            if not (missing := self._missing()):
                break
            if wait_s == LATE_S:
                tell(f"waiting at {self._place} for {abbreviated(missing)}, up to {self._wait_s:g} s")
        return missing

    def _name(self) -> None:
        """Name the nodes by their machines, if these tell them apart; that of one that is missing is not known."""
        found = {0: self._primary} | {i: a.handshake.host for i, a in self._arrivals.items() if a.handshake}
        machines = Counter(arrival.address for arrival in self._arrivals.values())
        machines[self.nodes[0].address] += 1
        for address, count in machines.items():
            if count > 1 and not is_loopback(address):
                fix = "start one on each node, as with mpirun --map-by ppr:1:node"
                self.close()
                raise UsageError(f"{count} copies of the command", f"run on one machine ({address})", fix)
        if len(set(found.values())) < len(found):
            found = {index: f"index{index}" for index in found}
        hosts = [found.get(index, node.hostname) for index, node in enumerate(self.nodes)]
        self.nodes = tuple(replace(node, hostname=host) for node, host in zip(self.nodes, hosts, strict=True))
        self._primary = hosts[0]

    def _take(self, index: int, handshake: Handshake) -> None:
        host = self.nodes[index].hostname
        self._change(host, address=self._arrivals[index].address)
        self._learn(host, handshake)

    def _index(self, node: NodeRecord) -> int:
        return next(index for index, each in enumerate(self.nodes) if each.hostname == node.hostname)

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Return the agent of a node; but for the primary's, it has joined."""
        return start_here() if node.hostname == self._primary else self._arrivals[self._index(node)].pending.agent

    def has_new_agent(self, node: NodeRecord) -> bool:
        """Return whether a new agent of a lost node has joined."""
        arrival = self._arrivals.get(self._index(node))
        return arrival is not None and arrival.handshake is not None

    def start_agent_again(self, node: NodeRecord) -> AgentProcess:
        """Wait for a new agent of a lost node, of which it has ended the old one and what that has left."""
        index = self._index(node)
        self._wait_for(lambda: self.has_new_agent(node), time.monotonic() + ARRIVAL_S)
        arrival = self._arrivals.get(index)
        if arrival is None or (handshake := arrival.handshake) is None:
            raise NotJoinedError("again", [node.hostname], str(self._place))
        self._take(index, handshake)
        return arrival.pending.agent

    def clear(self, node: NodeRecord) -> None:
        """End the processes that are left on the primary; on another node, what has started its agent does that."""
        if node.hostname == self._primary:
            clear_this_machine(node)

    def announce_end(self, exit_code: int, remarks: Mapping[str, str]) -> None:
        """Tell what has started the agents how the job has ended, and the cluster's operators what to remark."""
        leave("\n".join(f"{host}: {remark}" for host, remark in remarks.items()))
        for index, arrival in list(self._arrivals.items()):
            if not arrival.channel.is_over:
                ended = JobEnded(exit_code, remarks.get(self.nodes[index].hostname, ""))
                with contextlib.suppress(BrokenPipeError):  # it has just gone
                    arrival.channel.write(encode(ended))

    def close(self) -> None:
        """Listen no more, and end the agents that nobody has used."""
        for arrival in list(self._arrivals.values()):
            arrival.channel.close()
        until_s = time.monotonic() + LAST_WORDS_S
        for arrival in list(self._arrivals.values()):
            arrival.channel.wait_for_end(max(0.0, until_s - time.monotonic()))
        if self._listener is not None:
            self._listener.close()
