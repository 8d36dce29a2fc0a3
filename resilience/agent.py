"""The agent of one node: starts the node's Ray processes, tells that it is alive, and leaves nothing behind.

The allocation starts one on each node (``python -m resilience.agent``). It listens to nobody but its standard input and
answers on its standard output, both in JSON lines, so a pipe to it is all that the controller needs: a local pipe, or
one that ``srun`` or ``ssh`` carries. When that pipe closes, the controller is gone, and everything on this node ends.
It also ends when nothing came through the pipe for five minutes, since a network that is cut closes no pipe.

==============================================  =======================================================
controller says                                 agent does
==============================================  =======================================================
``{"do": "set-up", "files", "environment"}``    writes the node's private files, mode 0600
``{"do": "warm-up", "command"}``                starts a command that waits to be told its arguments
``{"do": "start-ray", "command", "arguments"}``  starts it, if need be, and tells it its arguments
``{"do": "stop-ray"}``                          ends it: the raylet in good order, the rest by force
``{"do": "sweep", "below"}``                    ends what is left of launches below that number
``{"do": "start-sidecar", "name", "command"}``   starts a process that lasts as long as the agent
``{"do": "stop-sidecar", "name"}``               ends it before that
``{"do": "go-on"}``                             nothing: it is the answer to each ``alive``
``{"do": "answer"}``                            says ``here``, after all ends that it has noticed
``{"do": "start-task", "name", "command", ...}``  starts a process of one launch (:mod:`resilience.tasks`)
``{"do": "signal-task", "name", "signal"}``     sends it a signal
``{"do": "printed", "bytes"}``                  lets tasks write on
==============================================  =======================================================

It says ``alive`` twice a second, from a thread that does nothing else; ``ray-started``, ``ray-ended``, ``swept``,
``sidecar-ended``, ``output``, ``task-ended`` and ``here``.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import psutil

from resilience.folders import claim, sweep
from resilience.processes import adopt_orphans, end_descendants, environment_of, reap_orphans
from resilience.tasks import Tasks

__all__ = ["BEAT_INTERVAL_S", "Agent", "main"]

BEAT_INTERVAL_S = 0.5
LOOK_INTERVAL_S = 1.0
LEASE_S = 300.0
ORDERLY_STOP_S = 2.0
FORCED_STOP_S = 5.0
# A command takes no longer; an agent that does is stuck, and its beats should not hide it.
STUCK_S = 15.0
LAST_LINES = 3
PARTS = {"raylet", "gcs_server"}
LAUNCH_VARIABLE = "LAGGARD_LAUNCH"


class Agent:
    """One node's agent; ``run`` returns when the controller's pipe closes, or is silent for ``lease_s``."""

    def __init__(self, commands: IO[bytes], answers: IO[str], lease_s: float = LEASE_S) -> None:
        self._commands = commands
        self._answers = answers
        self._lease_s = lease_s
        self._speech = threading.Lock()
        self._looked_s = self._heard_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._environment: dict[str, str] = {}
        self._directory = Path()
        self._made: list[Path] = []
        self._owned: IO[str] | None = None
        self._ray: subprocess.Popen[bytes] | None = None
        self._exits: list[int] = []  # descriptors that tell of the end of Ray's process, and of those it stands on
        self._sidecars: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks = Tasks(self._selector, self._say)
        self._unread = b""
        self._asked = False
        self._children, self._child_ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve the controller until its pipe closes, then end every descendant."""
        adopt_orphans()
        os.set_blocking(self._commands.fileno(), False)
        self._selector.register(self._commands, selectors.EVENT_READ, self._read_commands)
        self._selector.register(self._children, selectors.EVENT_READ, self._look_after_children)
        signal.set_wakeup_fd(self._child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ended = threading.Event()
        threading.Thread(target=self._beat, args=(ended,), name="beat", daemon=True).start()
        try:
            self._serve()
        except BrokenPipeError:
            return  # the controller has gone while we spoke
        finally:
            ended.set()
            end_descendants(deadline_s=FORCED_STOP_S)
            reap_orphans(own=())  # not every machine's first process does it for us
            self._remove_files()

    def _serve(self) -> None:
        while True:
            wait_s = max(0.0, self._looked_s + LOOK_INTERVAL_S - time.monotonic())
            for key, _ in self._selector.select(wait_s):
                if key.data() is False:
                    return
            if self._asked:
                self._asked = False
                self._say("here")
            if time.monotonic() >= self._looked_s + LOOK_INTERVAL_S:
                if time.monotonic() > self._heard_s + self._lease_s:
                    return
                self._watch_parts()
                self._looked_s = time.monotonic()

    def _beat(self, ended: threading.Event) -> None:
        with contextlib.suppress(BrokenPipeError):  # the controller has gone, as the other thread sees too
            while not ended.wait(BEAT_INTERVAL_S):
                if time.monotonic() < self._looked_s + STUCK_S:
                    self._say("alive")

    def _say(self, event: str, **fields: object) -> None:
        with self._speech:
            self._answers.write(json.dumps({"event": event, **fields}) + "\n")
            self._answers.flush()

    def _read_commands(self) -> bool:
        data = os.read(self._commands.fileno(), 1 << 16)
        if not data:
            return False
        self._heard_s = time.monotonic()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return True

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "set-up":
                self._set_up(Path(command["directory"]), command["files"], command["environment"])
            case "warm-up":
                self._warm_up(command["command"])
            case "start-ray":
                self._start_ray(command["command"], command["arguments"])
            case "stop-ray":
                self._stop_ray()
            case "sweep":
                self._sweep(int(command["below"]))
            case "start-sidecar":
                self._sidecars[command["name"]] = self._spawn(command["name"], command["command"])
            case "stop-sidecar":
                if sidecar := self._sidecars.pop(command["name"], None):
                    sidecar.kill()  # collected with the orphans
            case "go-on":
                pass
            case "answer":
                self._asked = True
            case "start-task":
                self._start_task(command)
            case "signal-task":
                self._tasks.signal(command["name"], command["signal"])
            case "printed":
                self._tasks.printed(command["bytes"])
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def _set_up(self, directory: Path, files: dict[str, str], environment: dict[str, str]) -> None:
        self._made = [folder for folder in (directory.parent, directory) if _make_private(folder)]
        if directory.parent in self._made:  # we are on a machine of our own
            sweep(directory.parent.parent)
            self._owned = claim(directory.parent)
        for name, content in files.items():
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
        self._directory = directory
        self._environment = environment

    def _start_task(self, command: dict[str, Any]) -> None:
        log = None if command["relayed"] else self._directory / f"{command['name']}.log"
        environment = {**self._environment, **command["environment"]}
        directory = command["directory"] or str(self._directory)
        self._tasks.start(command["name"], command["command"], environment, directory, log)

    def _remove_files(self) -> None:
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _warm_up(self, command: list[str]) -> subprocess.Popen[bytes]:
        self._ray = self._spawn("ray", command)
        return self._ray

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                cwd=self._directory,
            )

    def _started(self) -> set[int]:
        return self._not_of_ray() | ({self._ray.pid} if self._ray else set())

    def _not_of_ray(self) -> set[int]:
        return {sidecar.pid for sidecar in self._sidecars.values()} | self._tasks.pids

    def _look_after_children(self) -> bool:
        """Tell of sidecars that have ended, and collect what we have adopted: each end of a child is a signal."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._children, 1 << 16)
        self._look_after_sidecars()
        reap_orphans(own=self._started())
        return True

    def _look_after_sidecars(self) -> None:
        for name, sidecar in list(self._sidecars.items()):
            if (exit_code := sidecar.poll()) is not None:
                del self._sidecars[name]
                self._say("sidecar-ended", name=name, exit_code=exit_code)

    def _start_ray(self, command: list[str], arguments: list[str]) -> None:
        ray = self._ray or self._warm_up(command)
        self._watch_exit(ray.pid)
        self._say("ray-started", pid=ray.pid)
        pipe = cast("IO[bytes]", ray.stdin)  # it stays open as long as we live, and closes however we end
        with contextlib.suppress(BrokenPipeError):  # then it has ended, and we are told so
            pipe.write(json.dumps(arguments).encode() + b"\n")
            pipe.flush()

    def _ray_ended(self) -> bool:
        if self._ray is None:
            return True  # another of its processes has told us already
        self._forget_exits()
        self._ray.kill()
        exit_code = self._ray.wait()
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", self._ray.stdin).close()
        others = self._not_of_ray()
        end_descendants(lambda process: process.pid not in others, deadline_s=FORCED_STOP_S)
        self._ray = None
        self._say("ray-ended", exit_code=exit_code, last_words=self._last_words())
        return True

    def _last_words(self) -> str:
        log = self._directory / "ray.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return " / ".join(lines[-LAST_LINES:])

    def _stop_ray(self) -> None:
        if self._ray is None:
            self._say("ray-ended", exit_code=0)
            return
        # The raylet tells the cluster at once that its node leaves; nothing else here needs an orderly end.
        raylets = [p for p in psutil.Process(self._ray.pid).children() if p.name() == "raylet"]
        for raylet in raylets:
            raylet.terminate()
        psutil.wait_procs(raylets, ORDERLY_STOP_S)
        self._ray_ended()

    def _watch_parts(self) -> None:
        """Watch what a node cannot do without; ``ray start`` itself looks after them only once in a second."""
        if self._ray is None or len(self._exits) != 1:
            return  # Ray is not started, or its parts are watched already
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # then its end is told of as ever
            parts = {p.name(): p.pid for p in psutil.Process(self._ray.pid).children() if p.name() in PARTS}
            if "raylet" in parts:  # it is the last to start
                for pid in parts.values():
                    self._watch_exit(pid)

    def _watch_exit(self, pid: int) -> None:
        self._exits.append(os.pidfd_open(pid))
        self._selector.register(self._exits[-1], selectors.EVENT_READ, self._ray_ended)

    def _forget_exits(self) -> None:
        for descriptor in self._exits:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._exits = []

    def _sweep(self, below: int) -> None:
        def is_leftover(process: psutil.Process) -> bool:
            launch = environment_of(process).get(LAUNCH_VARIABLE, "")
            return launch.isdigit() and int(launch) < below

        self._say("swept", ended=end_descendants(is_leftover, deadline_s=FORCED_STOP_S))


def _make_private(folder: Path) -> bool:
    """Make a folder that is ours alone; return False if it was there, and is.

    Raises
    ------
    PermissionError
        If it was there and others can write to it: its name is no secret, so somebody may have been quicker.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not ours alone") from None
        return False
    return True


def main(arguments: Sequence[str] = ()) -> int:
    """Run the agent on standard input and output; how long the controller may be silent can be given, in seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller's to handle: it closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Agent(sys.stdin.buffer, sys.stdout, *map(float, arguments)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
