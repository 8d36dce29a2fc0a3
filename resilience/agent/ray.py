"""The Ray processes of a node, as its agent sees them: one process, and what it cannot do without."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Callable
from typing import IO, cast

import psutil

from laggard.resilience.agent.context import Context
from laggard.resilience.agent.processes import FORCED_STOP_S, end_descendants
from laggard.resilience.reading.ray_log import why_ray_ended
from laggard.resilience.wire import ray as wire

ORDERLY_STOP_S = 2.0
PARTS = {"raylet", "gcs_server"}
LOGS_OF_PARTS = "ray/session_2*/logs/[gr]*.err"


class RayProcess:
    """Starts and ends it; ``pids_beside`` are the agent's processes that do not end with it."""

    def __init__(self, context: Context, pids_beside: Callable[[], set[int]]) -> None:
        self._context = context
        self._pids_beside = pids_beside
        self._process: subprocess.Popen[bytes] | None = None
        self._exits: list[int] = []  # readable once the process, or one that it depends on, has ended
        context.inbox.on(wire.WarmUpRay, self.warm_up)
        context.inbox.on(wire.StartRay, self.start)
        context.inbox.on(wire.StopRay, self.stop)

    @property
    def pids(self) -> set[int]:
        """Its process id, if it runs."""
        return set() if self._process is None else {self._process.pid}

    def warm_up(self, command: wire.WarmUpRay | wire.StartRay) -> subprocess.Popen[bytes]:
        """Start it; it waits for its arguments."""
        folder = self._context.folder
        with folder.log_of("ray").open("ab") as log:
            self._process = subprocess.Popen(
                command.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=folder.environment({}),
                cwd=folder.path,
            )
        return self._process

    def start(self, command: wire.StartRay) -> None:
        """Pass it its arguments."""
        process = self._process or self.warm_up(command)
        self._watch_exit(process.pid)
        pipe = cast("IO[bytes]", process.stdin)  # it stays open as long as we live, and closes however we end
        with contextlib.suppress(BrokenPipeError):  # it has ended; we will be notified
            pipe.write(json.dumps(command.arguments).encode() + b"\n")
            pipe.flush()

    def stop(self, _: wire.StopRay) -> None:
        """End it; the raylet tells the cluster at once that its node leaves, and nothing else needs an orderly end."""
        if self._process is None:
            self._context.send(wire.RayEnded())
            return
        raylets = [p for p in psutil.Process(self._process.pid).children() if p.name() == "raylet"]
        for raylet in raylets:
            raylet.terminate()
        psutil.wait_procs(raylets, ORDERLY_STOP_S)
        self._end()

    def watch_parts(self) -> None:
        """Watch what a node cannot do without; ``ray start`` itself looks after them only once in a second."""
        if self._process is None or len(self._exits) != 1:
            return  # Ray is not started, or its parts are watched already
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended, which is reported elsewhere
            parts = {p.name(): p.pid for p in psutil.Process(self._process.pid).children() if p.name() in PARTS}
            if "raylet" in parts:  # it is the last to start
                for pid in parts.values():
                    self._watch_exit(pid)

    def _watch_exit(self, pid: int) -> None:
        self._exits.append(os.pidfd_open(pid))
        self._context.selector.register(self._exits[-1], selectors.EVENT_READ, self._end)

    def _end(self) -> None:
        if self._process is None:
            return  # another of its processes has already reported it
        for descriptor in self._exits:
            self._context.selector.unregister(descriptor)
            os.close(descriptor)
        self._exits = []
        exit_code = self._process.poll()
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", self._process.stdin).close()
        others = self._pids_beside()
        end_descendants(lambda process: process.pid not in others, deadline_s=FORCED_STOP_S)
        self._process = None
        self._context.send(wire.RayEnded(self._last_words(), exit_code))

    def _last_words(self) -> str:
        newest_first = sorted(self._context.folder.path.glob(LOGS_OF_PARTS), reverse=True)
        log = self._context.folder.log_of("ray")
        said = log.read_text(errors="replace") if log.exists() else ""
        return why_ray_ended((path.read_text(errors="replace") for path in newest_first), said)
