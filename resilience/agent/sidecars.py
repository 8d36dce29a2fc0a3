"""The sidecars of a node: helper processes that run as long as the agent, and are started again when they end."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from laggard.resilience.agent.later import Later
from laggard.resilience.decision.backoff import Backoff

__all__ = ["Sidecars"]

_log = logging.getLogger("laggard.resilience.agent")

Spawn = Callable[[str, Sequence[str]], "subprocess.Popen[bytes]"]
"""Starts a process; given its name and its command line."""


@dataclass(slots=True)
class _Sidecar:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None  # None while it waits to be started again
    began_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class Sidecars:
    """Starts sidecars, reports when they end, and starts them again after a wait that grows.

    Parameters
    ----------
    spawn
        Starts a process.
    send
        Sends a message to the controller.
    last_line
        Returns the last line of a sidecar's log.
    later
        Where to put what is done later.
    """

    def __init__(self, spawn: Spawn, send: Callable[..., None], last_line: Callable[[str], str], later: Later) -> None:
        self._spawn = spawn
        self._send = send
        self._last_line = last_line
        self._later = later
        self._sidecars: dict[str, _Sidecar] = {}

    @property
    def pids(self) -> set[int]:
        """Process ids of those that run."""
        return {each.process.pid for each in self._sidecars.values() if each.process is not None}

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a sidecar."""
        self._sidecars[name] = _Sidecar(command)
        self._run(name, self._sidecars[name])

    def stop(self, name: str) -> None:
        """End a sidecar, if there is one of that name; whoever reaps orphans reaps it."""
        sidecar = self._sidecars.pop(name, None)
        if sidecar is not None and sidecar.process is not None:
            sidecar.process.kill()

    def report_ended(self) -> None:
        """Report those that have ended, and arrange for their next start."""
        for name, sidecar in self._sidecars.items():
            if sidecar.process is None or (exit_code := sidecar.process.poll()) is None:
                continue
            sidecar.process = None
            again_s = sidecar.backoff.next_s(time.monotonic() - sidecar.began_s)
            why = self._last_line(name)
            _log.warning("%s ended with exit code %d: %s", name, exit_code, why)
            self._send("sidecar-ended", name=name, exit_code=exit_code, why=why, again_s=again_s)
            self._later.after(again_s, partial(self._run, name, sidecar))

    def _run(self, name: str, sidecar: _Sidecar) -> None:
        if self._sidecars.get(name) is sidecar:  # it was not stopped in the meantime
            sidecar.began_s = time.monotonic()
            sidecar.process = self._spawn(name, sidecar.command)
