"""Nodes on separate machines: the primary is this machine, the others are reached by ``srun`` or ``ssh``.

``srun`` and ``ssh`` only start the agents, which then dial (:mod:`.agent_listener`): anybody may connect to the ports
of ``srun``, and hold up what goes through it.

Nothing is left running on a node, whatever happens to it or to us, for three reasons. Its agent ends everything when we
say so, or when both its connection and the pipe that it was started through have closed. It does the same when it has
received nothing from us for a while, since a network that is cut closes nothing. And if the agent itself was killed,
another process ends everything that has its mark (:mod:`laggard.resilience.agent.processes`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from laggard.kvstore.control import NodeRecord
from laggard.logs import LOG_VARIABLE, last_line_of
from laggard.resilience.agent import TOGETHER
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import JoinToken
from laggard.resilience.agent.processes import AGENT_MARK
from laggard.resilience.allocation.agent_listener import AgentListener, lack_of_descriptors
from laggard.resilience.allocation.base import AgentProcess, Tell, Transport, clear_this_machine, silent, start_here
from laggard.resilience.allocation.discovery import REFUSAL_S, DialledAgent, OwnAgent, Pending, await_handshakes
from laggard.resilience.allocation.machines import MachineAllocation
from laggard.resilience.allocation.step import LAUNCH_S, Step, StepAgent
from laggard.resilience.errors import AllocationError, UnreachableNodesError
from laggard.resilience.folders import RUNTIME_ROOT_VARIABLE
from laggard.resilience.text import abbreviated
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import CannotDial
from laggard.system.ports import VARIABLE as PORT_RANGE
from laggard.system.ports import port_range

HANDSHAKE_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.handshake")
LEFTOVERS_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.processes")
CLEAR_DEADLINE_S = 10.0
# To reach a lost node and to end what is left there; ssh alone takes up to eight seconds to connect.
REACH_DEADLINE_S = 30.0
# Once what started an agent has ended and it has not been connected for so long, it has ended, too.
END_S = 0.5
# Variables that a process on another machine needs before it can read anything from our pipe.
_PASSED_ON_COMMAND_LINE = (LOG_VARIABLE, PORT_RANGE, "PYTHONPATH", "LD_LIBRARY_PATH", RUNTIME_ROOT_VARIABLE)


class RemoteAllocation(MachineAllocation):
    """Nodes on separate machines."""

    launch_s = LAUNCH_S  # how long a command may take to start the agents of many nodes
    refusal_s = REFUSAL_S  # how long an agent may take to answer if too many others do not

    def __init__(self, addresses: Mapping[str, str], transport: Transport, virtual_gpus: int) -> None:
        super().__init__(addresses, virtual_gpus)
        self._transport = self.manager = transport  # how the others are reached
        self._others = list(addresses)[1:]
        self._mark = secrets.token_hex(8)
        self._marks = {host: f"{self._mark}-{host}" for host in addresses}
        self._pending: dict[str, Pending] = {}
        self._steps: list[Step] = []
        self._channels: dict[str, Channel] = {}
        self._clearing: list[subprocess.Popen[bytes]] = []
        self._listener: AgentListener | None = None

    def discover(self, may_miss: int = 0, tell: Tell = silent) -> dict[str, str]:
        """Start the agents of all other nodes in parallel and find out what each node has."""
        self._pending = self._start_together()
        if lack := lack_of_descriptors(len(self._pending), len(self._others) - len(self._pending)):
            tell(lack)
        self._pending |= {host: Pending(self._start(host)) for host in self._others if host not in self._pending}
        handshakes = await_handshakes(self._pending, may_miss, partial(self._tell_late, tell), refusal_s=self.refusal_s)
        complaints = {host: self._pending[host].agent.complaint() for host in self._others if host not in handshakes}
        if error := self._refusal(complaints, may_miss):
            for pending in self._pending.values():
                _end(pending.agent)
            self.close()
            raise error
        for host in complaints:
            _end(self._pending.pop(host).agent)
        self._learn_primary()
        for host, handshake in handshakes.items():
            self._learn(host, handshake)
        self._tell_small(tell)
        answer = {str: f"no answer by {self._transport.name}", CannotDial: "no connection"}
        return {host: f"{answer[type(why)]} ({self._words_of(why, [host])})" for host, why in complaints.items()}

    def _refusal(self, complaints: Mapping[str, str | CannotDial], may_miss: int) -> AllocationError | None:
        """Return why the job cannot begin without the nodes that do not answer; None if it can."""
        cut_off = {host: why for host, why in complaints.items() if isinstance(why, CannotDial)}
        # Where a firewall is to blame and not these nodes, the primary would be left alone for no reason.
        if len(complaints) <= may_miss and (not cut_off or [*cut_off] != self._others):
            return None
        if len(cut_off) == len(complaints):
            fix = "" if port_range() else " --port-range names the ports that it lets through"
            return AllocationError(self._words_of(next(iter(cut_off.values())), [*cut_off]) + fix)
        words = {host: self._words_of(why, [host]) for host, why in complaints.items()}
        return self._unreachable(words)

    def _tell_late(self, tell: Tell, late: Collection[str]) -> None:
        by_state: dict[str | CannotDial, list[str]] = {}
        for host in late:
            state = self._pending[host].agent.complaint()
            by_state.setdefault(state if isinstance(state, str) else replace(state, node=""), []).append(host)
        for state, hosts in by_state.items():
            waits = f"waiting for {abbreviated(hosts)} by {self._transport.name}: " if isinstance(state, str) else ""
            tell(f"{waits}{self._words_of(state, hosts)}")

    def _words_of(self, complaint: str | CannotDial, hosts: Sequence[str]) -> str:
        if isinstance(complaint, str):
            return complaint
        return f"{abbreviated(hosts)} cannot reach {self._primary}:{complaint.port}: is there a firewall?"

    def start_agent(self, node: NodeRecord) -> AgentProcess:
        """Return the agent of a node; but for the primary's, it runs since :meth:`discover`."""
        return start_here() if node.hostname == self._primary else self._pending.pop(node.hostname).agent

    def start_agent_again(self, node: NodeRecord) -> AgentProcess:
        """Start the agent of a lost node anew, once nothing of its old one is left there."""
        host = node.hostname
        self._end_leftovers(host)
        # A mark of its own: a command that still ends processes with the old one leaves this agent alone.
        self._marks[host] = f"{self._mark}.{secrets.token_hex(4)}-{host}"
        agent = self._start(host)
        if handshake := await_handshakes({host: Pending(agent)}).get(host):
            self._learn(host, handshake)
            return agent
        complaint = self._words_of(agent.complaint(), [host])
        _end(agent)
        raise self._unreachable({host: complaint})

    def clear(self, node: NodeRecord) -> None:
        """End the processes that are left on a node whose agent is gone; does not wait for another machine."""
        if node.hostname == self._primary:
            clear_this_machine(node)
            return
        self._clearing.append(
            subprocess.Popen(
                self._leftovers_command(node.hostname),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        )

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables that a process on the node needs to find its devices, and those it does not inherit."""
        return {**self._transport.environment(), **super().environment(node, directory)}

    def close(self) -> None:
        """Listen no more, and wait a few seconds for the end of steps and for what :meth:`clear` has begun."""
        if self._listener is not None:
            self._listener.close()
        for step in self._steps:
            step.end()
        until_s = time.monotonic() + CLEAR_DEADLINE_S
        for process in self._clearing:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:  # the node cannot be reached; its agent, if it lives, ends everything
                process.kill()
                process.wait()

    def _end_leftovers(self, host: str) -> None:
        command = self._leftovers_command(host)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=REACH_DEADLINE_S,
                start_new_session=True,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise self._unreachable({host: f"no answer within {REACH_DEADLINE_S:g} s"}) from None
        if done.returncode != 0:
            why = last_line_of(done.stderr) or "processes of its old agent do not end"
            raise self._unreachable({host: why})

    def _leftovers_command(self, host: str) -> list[str]:
        return self._transport.command(host, [*env_command(), *LEFTOVERS_COMMAND, self._marks[host]])

    def _unreachable(self, complaints: Mapping[str, str]) -> UnreachableNodesError:
        example = self._transport.command(next(iter(complaints)), ["true"])
        return UnreachableNodesError(f"no answer by {self._transport.name}", complaints, example)

    def _start_together(self) -> dict[str, Pending]:
        """Start the agents of as many nodes as one command can, for each such command."""
        pending: dict[str, Pending] = {}
        argv = [*self._handshake_command(self._mark), TOGETHER]
        for hosts, command in self._transport.commands_together(self._others, argv).items():
            step = Step(command, hosts, self.launch_s)
            listener = self._listen()
            channels = {host: listener.channel(partial(step.may_dial, host)) for host in hosts}
            step.admit(listener.token_for_all(channels), channels)
            self._steps.append(step)
            self._channels |= channels
            agents = {host: StepAgent(step.process.pid, channel, step, host) for host, channel in channels.items()}
            pending |= {host: Pending(agent, partial(self._start, host)) for host, agent in agents.items()}
        return pending

    def _handshake_command(self, mark: str) -> list[str]:
        command = [*env_command(**{AGENT_MARK: mark}), *HANDSHAKE_COMMAND]
        return command if self._virtual else [*command, "--gpus"]

    def _start(self, host: str) -> OwnAgent:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the agent closes it
        process = subprocess.Popen(
            self._transport.command(host, self._handshake_command(self._marks[host])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            cwd="/",
        )
        channel = self._listen().channel(lambda absent_s: absent_s < END_S or process.poll() is None)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
            cast("IO[bytes]", process.stdin).write(encode(self._admit(host, channel)))
            cast("IO[bytes]", process.stdin).flush()
        return OwnAgent(process.pid, channel, process, stderr)

    def _admit(self, host: str, channel: Channel) -> JoinToken:
        if (former := self._channels.get(host)) is not None:
            self._listen().withdraw(former)
        self._channels[host] = channel
        return self._listen().admit(channel)

    def _listen(self) -> AgentListener:
        if self._listener is None:
            self._listener = AgentListener(self.nodes[0].address, len(self.nodes))
        return self._listener


def _end(agent: DialledAgent) -> None:
    """End an agent that nobody has taken."""
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        agent.close()
    agent.kill()
    agent.wait()


def env_command(**more: str) -> list[str]:
    """Return an ``env`` command to put in front of a remote command: what it needs of our environment, and ``more``."""
    given = {name: os.environ[name] for name in _PASSED_ON_COMMAND_LINE if name in os.environ} | more
    return ["env", *(f"{name}={value}" for name, value in given.items())]
