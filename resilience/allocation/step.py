"""One ``srun`` that starts the agents of many nodes: a step of Slurm's.

Until it is launched, a step fails as a whole: a node that Slurm cannot reach ends it. Then each of its nodes gets an
``srun`` of its own. ``srun`` passes on what we write to it once all of its processes run, and an agent dials when it
has its join token; so with the first answer the step is launched. From then on its agents do not depend on it: one is
gone when its connection has dropped and ``srun`` has said that it ended, or when it is silent; and ``srun`` may end.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, cast

import psutil

from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import JoinToken
from laggard.resilience.allocation.discovery import DialledAgent, cannot_dial
from laggard.resilience.allocation.node_lists import expand_node_list
from laggard.resilience.errors import UsageError
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import CannotDial

# Slurm itself gives up a node that does not answer after twice its MessageTimeout, which is 10 s by default.
LAUNCH_S = 25.0
# An agent whose connection has dropped dials within it, unless it is gone.
REDIAL_S = 3.5
# Nothing keeps the agents of a step from ending, but that of a lost node may never have.
END_S, END_LOST_S = 8.0, 1.0
MAX_LINE_BYTES = 1 << 16
# What srun says of a task, in every version of Slurm: srun: error: node[2-3]: tasks 1-2: Killed
_ENDED = re.compile(r"^srun: error: (?P<hosts>[^\s:]+): tasks? [\d,-]+: ")


class Step:
    """One ``srun``, and the agents that it has started."""

    def __init__(self, command: Sequence[str], hosts: Iterable[str], launch_s: float = LAUNCH_S) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
        self._awaited = set(hosts)
        self._channels: Mapping[str, Channel] = {}
        self._ended: set[str] = set()
        self._complaint = "nothing answers yet"
        self._cut_off: dict[str, CannotDial] = {}
        self._is_launched = False
        # Another process of srun's then has Slurm end what there is of the step.
        self._launching = threading.Timer(launch_s, self.process.kill)
        self._launching.daemon = True
        self._members = set(self._awaited)
        self._has_lost = False
        self._leaving = threading.Lock()

    def admit(self, token: JoinToken, channels: Mapping[str, Channel]) -> None:
        """Send the agents their join token, with which each gets to its channel."""
        self._channels = channels
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
            self._stdin.write(encode(token))
            self._stdin.flush()
        threading.Thread(target=self._read, name="step", daemon=True).start()
        self._launching.start()

    def note_answer(self, host: str) -> None:
        """Take note of the first message of an agent: with the first of all, the step is launched."""
        self._awaited.discard(host)
        if not self._is_launched:
            self._is_launched = True
            self._launching.cancel()
            self._outlive_srun()

    def complaint(self, host: str) -> str | CannotDial:
        """Return an agent's own complaint, or what ``srun`` has complained about last, or how far the agents are."""
        return self._cut_off.get(host) or self._complaint

    def may_dial(self, host: str, absent_s: float) -> bool:
        """Return whether an agent that is not connected may still dial: not if it has ended, or is gone like the step.

        Parameters
        ----------
        host
            Host name of its node.
        absent_s
            For how many seconds it has not been connected.
        """
        return host not in self._ended and (absent_s < REDIAL_S or self.process.poll() is None)

    def leave(self, host: str, *, lost: bool = False) -> None:
        """Do without an agent from now on; with the last one, the standard input of the others ends, too."""
        with self._leaving:
            self._members.discard(host)
            self._has_lost |= lost
            if not self._members:
                with contextlib.suppress(BrokenPipeError):
                    self._stdin.close()

    def end(self) -> None:
        """Wait until ``srun`` ends, since all agents have left; end it after some seconds."""
        for last in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(END_LOST_S if self._has_lost else END_S)
            except subprocess.TimeoutExpired:
                last()
        self.process.wait()

    @property
    def _stdin(self) -> IO[bytes]:
        return cast("IO[bytes]", self.process.stdin)

    def _read(self) -> None:
        with cast("IO[bytes]", self.process.stdout) as stdout:
            while line := stdout.readline(MAX_LINE_BYTES):
                text = line.decode(errors="replace").strip()
                if cut_off := cannot_dial(text):
                    self._cut_off[cut_off.node] = cut_off
                elif text:
                    self._complaint = text
                    if ended := _ENDED.search(text):
                        with contextlib.suppress(UsageError):  # it only looks like a list of nodes
                            self._note_end(expand_node_list(ended["hosts"]))
        self._launching.cancel()
        for host in tuple(self._awaited):
            self._channels[host].abandon()

    def _note_end(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._ended.add(host)
            if (channel := self._channels.get(host)) is not None and not channel.is_connected:
                channel.abandon()

    def _outlive_srun(self) -> None:
        """End the process of srun's that has Slurm kill the whole step should ``srun`` itself be killed."""
        with contextlib.suppress(psutil.Error):
            srun = psutil.Process(self.process.pid)
            for child in srun.children():
                if child.cmdline() == srun.cmdline():
                    child.kill()


@dataclass(frozen=True, slots=True)
class StepAgent(DialledAgent):
    """An agent that a step has started."""

    step: Step  # the step
    host: str

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has said that it ends, or is gone."""
        DialledAgent.wait(self, timeout)
        self.step.leave(self.host)
        return 0

    def kill(self) -> None:
        """Do without it."""
        self.channel.abandon()
        self.step.leave(self.host, lost=True)

    def note_answer(self) -> None:
        """Take note of its handshake."""
        self.step.note_answer(self.host)

    def complaint(self) -> str | CannotDial:
        """Return its own complaint, or what ``srun`` has complained about last, or how far the agents have come."""
        return self.step.complaint(self.host)
