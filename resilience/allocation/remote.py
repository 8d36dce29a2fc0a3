"""Nodes on machines of their own: the primary is this one, the others are reached by ``srun`` or ``ssh``.

Three things see to it that nothing is left on a node, whatever happened to it or to us: its agent ends everything when
its pipe closes; it also does so when it has heard nothing from us for a while, since a cut network closes no pipe; and
where the agent itself was killed, another process ends all that carries its mark (:mod:`resilience.leftovers`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from collectors.device import gpu_names
from kvstore.control import NodeRecord
from resilience.allocation.base import AllocationError, clear_this_machine, device_variables, start_here
from resilience.allocation.muster import Candidate, hear_greetings
from resilience.folders import RUNTIME_ROOT_VARIABLE
from resilience.leftovers import AGENT_MARK

__all__ = ["RemoteAllocation", "Transport", "needed_at_once"]

GREETING_COMMAND = (sys.executable, "-m", "resilience.greeting")
LEFTOVERS_COMMAND = (sys.executable, "-m", "resilience.leftovers")
CLEAR_DEADLINE_S = 10.0
# What a process on another machine needs before it can read anything from us.
_NEEDED_AT_ONCE = ("PYTHONPATH", "LD_LIBRARY_PATH", RUNTIME_ROOT_VARIABLE)


class Transport(Protocol):
    """A way to run a process on another node, its standard input and output connected to ours."""

    @property
    def name(self) -> str:
        """The program that does it."""

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node, and lasts as long as it does."""

    def environment(self) -> Mapping[str, str]:
        """Return what processes of a node should have of our environment and do not get by themselves."""

    def is_ending(self) -> bool:
        """Whether the resource manager is ending the whole job."""


class RemoteAllocation:
    """Nodes on machines of their own.

    Parameters
    ----------
    addresses
        The nodes' addresses by host name, the primary first.
    transport
        How the others are reached.
    virtual_gpus
        Virtual devices of each node; 0 where the nodes' GPUs are to be used.
    """

    def __init__(self, addresses: Mapping[str, str], transport: Transport, virtual_gpus: int) -> None:
        self._transport = transport
        self._virtual = virtual_gpus > 0
        virtual = tuple(str(gpu) for gpu in range(virtual_gpus))
        self.nodes = tuple(NodeRecord(host, address, virtual) for host, address in addresses.items())
        self._primary, *self._others = addresses
        job = secrets.token_hex(8)
        self._marks = {host: f"{job}-{number}" for number, host in enumerate(addresses)}
        self._n_cpus: dict[str, int] = {}
        self._mustered: dict[str, Candidate] = {}
        self._clearing: list[subprocess.Popen[bytes]] = []

    def muster(self) -> None:
        """Start the agents of all other nodes at once and hear what each node has.

        Raises
        ------
        AllocationError
            If nodes do not answer; it names all of them.
        """
        self._mustered = {host: self._call(host) for host in self._others}
        greetings = hear_greetings(self._mustered)
        if silent := [host for host in self._others if host not in greetings]:
            reasons = ", ".join(f"{host} ({self._mustered[host].complaint()})" for host in silent)
            for candidate in self._mustered.values():
                candidate.dismiss()
            example = shlex.join(self._transport.command(silent[0], ["true"]))
            raise AllocationError(f"no answer by {self._transport.name} from {reasons}: try {example}")
        self._n_cpus = {host: greeting.n_cpus for host, greeting in greetings.items()}
        self._n_cpus[self._primary] = len(os.sched_getaffinity(0))
        if not self._virtual:
            gpus = {self._primary: tuple(gpu_names())} | {host: greeting.gpus for host, greeting in greetings.items()}
            self.nodes = tuple(NodeRecord(n.hostname, n.address, gpus[n.hostname]) for n in self.nodes)

    def start_agent(self, node: NodeRecord) -> subprocess.Popen[bytes]:
        """Start the agent of a node, its standard input and output piped to us; most have been since :meth:`muster`."""
        if node.hostname == self._primary:
            return start_here()
        return (self._mustered.pop(node.hostname, None) or self._call(node.hostname)).accept()

    def clear(self, node: NodeRecord) -> None:
        """End whatever a node whose agent is gone has left; on another machine that is only begun here."""
        if node.hostname == self._primary:
            clear_this_machine(node)
            return
        argv = [*needed_at_once(), *LEFTOVERS_COMMAND, self._marks[node.hostname]]
        command = self._transport.command(node.hostname, argv)
        self._clearing.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        )

    def is_ending(self) -> bool:
        """Whether the resource manager is ending the whole job, so that lost nodes are no news."""
        return self._transport.is_ending()

    def ray_options(self, node: NodeRecord) -> Sequence[str]:
        """Return what ``ray start`` needs to know of this kind of node."""
        # Ray would count all processors of the machine, also those that we were not given.
        return [f"--num-gpus={len(node.devices)}", f"--num-cpus={self._n_cpus[node.hostname]}"]

    def environment(self, node: NodeRecord, directory: Path) -> dict[str, str]:
        """Return the variables with which a process on the node finds its devices, and what it would not inherit."""
        return {**self._transport.environment(), **device_variables(node, directory, virtual=self._virtual)}

    def close(self) -> None:
        """Wait, not for long, for what :meth:`clear` has begun."""
        until_s = time.monotonic() + CLEAR_DEADLINE_S
        for process in self._clearing:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:  # the node cannot be reached: its agent hears nothing and ends by itself
                process.kill()
                process.wait()

    def _call(self, host: str) -> Candidate:
        argv = [*needed_at_once(**{AGENT_MARK: self._marks[host]}), *GREETING_COMMAND]
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - the candidate closes it
        process = subprocess.Popen(
            self._transport.command(host, argv if self._virtual else [*argv, "--gpus"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            cwd="/",
        )
        return Candidate(process, complaints)


def needed_at_once(**more: str) -> list[str]:
    """Return the beginning of a command that gives it what it needs of our environment, and more variables."""
    given = {name: os.environ[name] for name in _NEEDED_AT_ONCE if name in os.environ} | more
    return ["env", *(f"{name}={value}" for name, value in given.items())]
