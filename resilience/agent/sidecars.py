"""The sidecars of a node: helper processes that run as long as the agent, and are started again when they end."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from laggard.resilience.agent.context import Context
from laggard.resilience.decision.backoff import Backoff
from laggard.resilience.wire.tasks import StartSidecar, StopSidecar, WillRestart

_log = logging.getLogger("laggard.resilience.agent")


@dataclass(slots=True)
class _Sidecar:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None  # None while it waits to be started again
    began_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class Sidecars:
    """Starts sidecars, reports when they end, and starts them again after a wait that grows."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sidecars: dict[str, _Sidecar] = {}

    @property
    def pids(self) -> set[int]:
        """Process ids of those that run."""
        return {each.process.pid for each in self._sidecars.values() if each.process is not None}

    def start(self, command: StartSidecar) -> None:
        """Start a sidecar."""
        sidecar = self._sidecars[command.name] = _Sidecar(command.command)
        self._run(command.name, sidecar)

    def stop(self, command: StopSidecar) -> None:
        """End a sidecar, if there is one of that name; whoever reaps orphans reaps it."""
        sidecar = self._sidecars.pop(command.name, None)
        if sidecar is not None and sidecar.process is not None:
            sidecar.process.kill()

    def report_ended(self) -> None:
        """Report those that have ended, and arrange for their next start."""
        for name, sidecar in self._sidecars.items():
            if sidecar.process is None or (exit_code := sidecar.process.poll()) is None:
                continue
            sidecar.process = None
            again_s = sidecar.backoff.next_s(time.monotonic() - sidecar.began_s)
            why = self._context.folder.last_line_of(name)
            _log.warning("%s ended with exit code %d: %s", name, exit_code, why)
            self._context.send(WillRestart(name, exit_code, why, again_s))
            self._context.later.after(again_s, partial(self._run, name, sidecar))

    def _run(self, name: str, sidecar: _Sidecar) -> None:
        if self._sidecars.get(name) is sidecar:  # it was not stopped in the meantime
            sidecar.began_s = time.monotonic()
            sidecar.process = self._context.folder.spawn(name, sidecar.command)
