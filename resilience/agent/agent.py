"""The agent of one node: starts its processes, reports that it is alive, and leaves nothing behind.

The allocation starts one on each node (``python -m laggard.resilience.agent.agent``). It takes commands and answers,
both as lines of JSON: on its standard input and output, or, on another machine than the controller's, over a connection
that it makes (:mod:`.dialling`). When that closes, the controller is gone, and everything on the node is ended. The
same happens when nothing has come for some time, since a network that is cut closes nothing.

=======================================================  ============================================================
the controller sends                                     the agent
=======================================================  ============================================================
``{"do": "set-up", "directory", "files", ...}``          writes the node's private files, mode 0600
``{"do": "warm-up", "command"}``                         starts a command that waits for its arguments
``{"do": "start-ray", "command", "arguments"}``          starts it, unless it is warm, and passes it its arguments
``{"do": "stop-ray"}``                                   ends it: the raylet gracefully, the rest by force
``{"do": "end-leftovers", "below"}``                     ends what is left of launches below that number
``{"do": "start-sidecar", "name", "command"}``           starts a process that is kept running
``{"do": "stop-sidecar", "name"}``                       ends it earlier
``{"do": "keep-alive"}``                                 does nothing: it is the reply to ``alive``
``{"do": "ping"}``                                       sends ``pong``, after everything that it has noticed
``{"do": "start-task", "name", "command", ...}``         starts a process of one launch (:mod:`.tasks`)
``{"do": "signal-task", "name", "signal"}``              sends it a signal
``{"do": "keep-warm", "command", "modules", ...}``       keeps a process that tasks are forked from (:mod:`.warm`)
``{"do": "fork-ahead", "tasks"}``                        forks processes for tasks that are about to start
``{"do": "printed", "bytes"}``                           passes on more of the tasks' output
``{"do": "send-logs"}``                                  sends the end of each log on this node
``{"do": "check-node", "devices", "probe"}``             has the node checked (:mod:`.node_check`), and sends the result
``{"do": "dump-stacks", "launch"}``                      sends where the launch's ranks stand (:mod:`.stack_dump`), and
                                                         before that what its tasks have written last
=======================================================  ============================================================

It sends ``alive`` twice a second, in a large job more rarely, from a thread that does nothing else; while that gets no
reply, it raises a count in the state server, too (:mod:`.second_path`). It also sends ``ray-started``,
``ray-ended``, ``leftovers-ended``, ``sidecar-ended``, ``output``, ``task-started``, ``task-ended``, ``task-restarts``,
``warm``, ``hooked``, ``imports``, ``log``, ``logs-sent``, ``node-checked``, ``stacks``, ``error-output``,
``told-to-end``, ``crashed`` and ``pong``.
"""

from __future__ import annotations

import contextlib
import json
import logging
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
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, cast

import psutil

from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.logs import configure_logging, ends_of_logs, last_line, log_to_file
from laggard.resilience.agent import ALIVE, DIALS, own_name
from laggard.resilience.agent.hook import hook_variables
from laggard.resilience.agent.imports import Imports
from laggard.resilience.agent.inquiries import Inquiries, Inquiry
from laggard.resilience.agent.later import Later
from laggard.resilience.agent.processes import (
    adopt_orphans,
    end_descendants,
    end_marked,
    environment_of,
    reap_orphans,
)
from laggard.resilience.agent.second_path import SecondPath
from laggard.resilience.agent.sidecars import Sidecars
from laggard.resilience.agent.tasks import Tasks, TaskStart
from laggard.resilience.agent.warm import WarmProcess
from laggard.resilience.decision.pace import Pace
from laggard.resilience.decision.warm_start import Wanted
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.folders import lock_folder, remove_stale_folders

__all__ = ["Agent", "main"]

_log = logging.getLogger("laggard.resilience.agent")

LOOK_INTERVAL_S = 1.0
LEASE_S = 300.0
# Before its first command, an agent waits for so much longer: the controller begins once all nodes have answered, or
# have been given up.
OTHERS_S = 90.0
ORDERLY_STOP_S = 2.0
EXIT_TERMINATED = 128 + signal.SIGTERM
# After SIGTERM: longer than the controller, which is told the same, gives the program to save.
SAVE_S = 8.0
FORCED_STOP_S = 5.0
# No command takes longer. An agent that does is stuck, and its heartbeats must not hide that.
STUCK_S = 15.0
LAST_LINES = 3
PARTS = {"raylet", "gcs_server"}
CHECK_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.node_check")
CHECK_DEADLINE_S = 2.5
STACKS_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.stack_dump")
STACKS_DEADLINE_S = 10.0


class Answers(Protocol):
    """What the agent's messages are written to."""

    def write(self, text: str, /) -> int:
        """Write this."""

    def flush(self) -> None:
        """Send what was written."""


class Agent:
    """One node's agent; `run` returns when the controller's pipe closes or has been silent for ``lease_s`` seconds.

    Before the first command it may be silent for ``others_s`` seconds more. The job has ``n_nodes`` nodes, as far as is
    known by then.
    """

    def __init__(
        self,
        commands: IO[bytes],
        answers: Answers,
        lease_s: float = LEASE_S,
        others_s: float = 0.0,
        n_nodes: int = Pace().n_nodes,
    ) -> None:
        self._commands = commands
        self._answers = answers
        self._lease_s = lease_s
        self._sending = threading.Lock()
        self._looked_s = time.monotonic()
        self._heard_s = self._looked_s + others_s
        self._selector = selectors.DefaultSelector()
        self._environment: dict[str, str] = {}
        self._directory = Path()
        self._created: list[Path] = []
        self._lock: IO[str] | None = None
        self._ray: subprocess.Popen[bytes] | None = None
        self._exits: list[int] = []  # readable once Ray's process, or one that it depends on, has ended
        self._later = Later()
        self._sidecars = Sidecars(self._spawn, self._send, self._last_line_of, self._later)
        self._warm = WarmProcess(self._selector, self._send, self._later)
        self._tasks = Tasks(self._selector, self._send, self._later, self._warm)
        self._imports = Imports()
        self._inquiries = Inquiries(self._selector, self._send, self._later)
        self._second_path = SecondPath(self._unheard_s)
        self._unread = b""
        self._pace = Pace(n_nodes)
        self._pinged = False
        self._told_to_end = False
        self._children, self._child_ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Carry out commands until the controller's pipe closes, then end every descendant."""
        adopt_orphans()
        os.set_blocking(self._commands.fileno(), False)
        self._selector.register(self._commands, selectors.EVENT_READ, self._read_commands)
        self._selector.register(self._children, selectors.EVENT_READ, self._reap_children)
        signal.set_wakeup_fd(self._child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        ended = threading.Event()
        threading.Thread(target=self._send_heartbeats, args=(ended,), name="heartbeat", daemon=True).start()
        is_alone = False  # whether the controller is gone, whose program on this machine may have left something
        try:
            self._serve()
            is_alone = True
        except BrokenPipeError:
            is_alone = True  # the controller went away while we were sending
        except Exception as error:
            _log.exception("the agent crashed")
            self._send("crashed", why=f"{type(error).__name__}: {error}")
            raise
        finally:
            ended.set()
            with contextlib.ExitStack() as last:  # even if a process cannot be ended
                last.callback(self._remove_files)
                last.callback(reap_orphans, own=())  # not every machine's init does it for us
                if is_alone:
                    last.callback(self._end_strays)
                end_descendants(deadline_s=FORCED_STOP_S)

    def _serve(self) -> None:
        while True:
            wait_s = max(0.0, self._looked_s + LOOK_INTERVAL_S - time.monotonic())
            for key, _ in self._selector.select(self._later.wait_s(wait_s)):
                if key.data() is False:
                    return
            self._later.run_due()
            if self._told_to_end:
                self._told_to_end = False
                self._send("told-to-end")
                self._later.after(SAVE_S, partial(sys.exit, EXIT_TERMINATED))
            if self._pinged:
                self._pinged = False
                self._send("pong", time_s=time.time())
            if time.monotonic() >= self._looked_s + LOOK_INTERVAL_S:
                if time.monotonic() > self._heard_s + self._lease_s:
                    return
                self._watch_parts()
                if self._imports.begins():
                    self._send("hooked")
                if names := self._imports.look():
                    self._send("imports", names=names)
                self._looked_s = time.monotonic()

    def _on_sigterm(self, *_: object) -> None:
        """End, but with copies of the program not at once: Slurm ends everything at one moment, and they may save."""
        if not self._tasks.pids:
            sys.exit(EXIT_TERMINATED)
        self._told_to_end = True  # the signal has also ended the selector's wait

    def _send_heartbeats(self, ended: threading.Event) -> None:
        with contextlib.suppress(BrokenPipeError):  # the controller is gone, as the other thread notices too
            while not ended.wait(self._pace.interval_s):
                if not self._is_stuck():
                    self._write(ALIVE)

    def _is_stuck(self) -> bool:
        return time.monotonic() >= self._looked_s + STUCK_S

    def _unheard_s(self) -> float | None:
        return None if self._is_stuck() else time.monotonic() - self._heard_s

    def _send(self, event: str, **fields: object) -> None:
        self._write(json.dumps({"event": event, **fields}) + "\n")

    def _write(self, line: str) -> None:
        with self._sending:
            self._answers.write(line)
            self._answers.flush()

    def _read_commands(self) -> bool:
        data = os.read(self._commands.fileno(), 1 << 16)
        if not data:
            return False
        self._heard_s = time.monotonic()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle_command(json.loads(line))
        return True

    def _handle_command(self, command: dict[str, Any]) -> None:
        if command["do"] != "keep-alive":
            _log.debug("command: %s %s", command["do"], command.get("name", ""))
        match command["do"]:
            case "set-up":
                self._pace = Pace(command.get("n_nodes", self._pace.n_nodes))
                self._set_up(Path(command["directory"]), command["files"], command["environment"])
            case "warm-up":
                self._warm_up(command["command"])
            case "start-ray":
                self._start_ray(command["command"], command["arguments"])
            case "stop-ray":
                self._stop_ray()
            case "end-leftovers":
                self._end_leftovers(int(command["below"]))
            case "start-sidecar":
                self._sidecars.start(command["name"], command["command"])
            case "stop-sidecar":
                self._sidecars.stop(command["name"])
            case "keep-alive":
                pass
            case "ping":
                self._pinged = True
            case "start-task":
                self._start_task(command)
            case "signal-task":
                self._tasks.signal(command["name"], command["signal"])
            case "keep-warm":
                self._keep_warm(command)
            case "fork-ahead":
                self._warm.fork_ahead(command["tasks"])
            case "printed":
                self._tasks.printed(command["bytes"])
            case "send-logs":
                self._send_logs()
            case "check-node":
                self._check_node(command["devices"], probe=command["probe"])
            case "dump-stacks":
                self._dump_stacks(int(command["launch"]))
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def _set_up(self, directory: Path, files: dict[str, str], environment: dict[str, str]) -> None:
        self._created = [folder for folder in (directory.parent, directory) if _create_private(folder)]
        if directory.parent in self._created:  # we are on a machine of our own
            remove_stale_folders(directory.parent.parent)
            self._lock = lock_folder(directory.parent)
        self._directory = directory
        self._write_private(files)
        self._environment = environment
        endpoint_file = Path(environment.get(ENDPOINT_FILE, ""))
        if endpoint_file.is_file() and NODE in environment:
            self._second_path.start(endpoint_file, environment[NODE], self._pace)
        log_to_file(directory / "agent.log")

    def _write_private(self, files: dict[str, str]) -> None:
        for name, content in files.items():
            path = self._directory / name
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(content)
            except OSError as error:
                error.filename = str(path)  # which the system does not name when a disk is full
                raise

    def _start_task(self, command: dict[str, Any]) -> None:
        log = None if command["relayed"] else self._directory / f"{command['name']}.log"
        imports = self._directory / f"imports-{command['name']}.txt" if command.get("records_imports") else None
        if imports is not None:
            self._imports.watch(imports)
        start = TaskStart(
            command["name"],
            command["command"],
            self._environment_of(command),
            command["directory"] or str(self._directory),
            log,
            restarts=command["restarts"],
            may_be_warm=command.get("may_be_warm", False),
            imports=imports,
        )
        try:
            self._write_private(command.get("files", {}))
        except OSError as error:
            self._tasks.report_no_start(start, f"{error.filename} cannot be written: {error.strerror}")
        else:
            self._tasks.start(start)

    def _environment_of(self, command: dict[str, Any]) -> dict[str, str]:
        environment = {**self._environment, **command["environment"]}
        if command.get("writes_stacks"):
            environment |= hook_variables({**os.environ, **environment})
        return environment

    def _keep_warm(self, command: dict[str, Any]) -> None:
        wanted = Wanted(
            tuple(command["command"]),
            {**os.environ, **self._environment_of(command)},
            frozenset(command["varying"]),
            command["directory"],
            tuple(command["modules"]),
            tuple(command["asked"]),
        )
        self._warm.keep(wanted, self._directory / "warm.log")

    def _send_logs(self) -> None:
        for name, text in ends_of_logs(self._directory).items():
            self._send("log", name=name, text=text)
        self._send("logs-sent")

    def _check_node(self, devices: list[str], *, probe: bool) -> None:
        question = json.dumps({"devices": devices, "probe": probe})
        self._inquiries.ask(Inquiry("node-checked", CHECK_COMMAND, self._environment, CHECK_DEADLINE_S, question))

    def _dump_stacks(self, launch: int) -> None:
        def send_error_output() -> None:  # after the look at the stacks: what is ending by then has written why
            self._send("error-output", of=self._tasks.newest_error_output())

        command = [*STACKS_COMMAND, str(launch)]
        inquiry = Inquiry("stacks", command, self._environment, STACKS_DEADLINE_S, before_answer=send_error_output)
        self._inquiries.ask(inquiry)

    def _end_strays(self) -> None:
        """End what a program of the controller's own has left here: if the controller was killed, nobody else does."""
        if mark := self._environment.get(ENDPOINT_FILE):
            end_marked(ENDPOINT_FILE, mark, FORCED_STOP_S)

    def _remove_files(self) -> None:
        for folder in self._created:
            shutil.rmtree(folder, ignore_errors=True)

    def _warm_up(self, command: list[str]) -> subprocess.Popen[bytes]:
        self._ray = self._spawn("ray", command)
        return self._ray

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                cwd=self._directory,
            )

    def _own_pids(self) -> set[int]:
        return self._pids_beside_ray() | ({self._ray.pid} if self._ray else set())

    def _pids_beside_ray(self) -> set[int]:
        return self._sidecars.pids | self._tasks.pids | self._inquiries.pids | self._warm.pids

    def _reap_children(self) -> bool:
        """Report sidecars that have ended and reap adopted processes; called after each SIGCHLD."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._children, 1 << 16)
        self._sidecars.report_ended()
        self._warm.reap()
        reap_orphans(own=self._own_pids())
        return True

    def _last_line_of(self, name: str) -> str:
        return last_line(self._directory / f"{name}.log")

    def _start_ray(self, command: list[str], arguments: list[str]) -> None:
        ray = self._ray or self._warm_up(command)
        self._watch_exit(ray.pid)
        self._send("ray-started", pid=ray.pid)
        pipe = cast("IO[bytes]", ray.stdin)  # it stays open as long as we live, and closes however we end
        with contextlib.suppress(BrokenPipeError):  # it has ended; we will be notified
            pipe.write(json.dumps(arguments).encode() + b"\n")
            pipe.flush()

    def _ray_ended(self) -> bool:
        if self._ray is None:
            return True  # another of its processes has already reported it
        self._forget_exits()
        self._ray.kill()
        exit_code = self._ray.wait()
        with contextlib.suppress(BrokenPipeError):
            cast("IO[bytes]", self._ray.stdin).close()
        others = self._pids_beside_ray()
        end_descendants(lambda process: process.pid not in others, deadline_s=FORCED_STOP_S)
        self._ray = None
        self._send("ray-ended", exit_code=exit_code, last_words=self._last_words())
        return True

    def _last_words(self) -> str:
        log = self._directory / "ray.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return " / ".join(lines[-LAST_LINES:])

    def _stop_ray(self) -> None:
        if self._ray is None:
            self._send("ray-ended", exit_code=0)
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
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended, which is reported elsewhere
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

    def _end_leftovers(self, below: int) -> None:
        def is_leftover(process: psutil.Process) -> bool:
            launch = environment_of(process).get(LAUNCH, "")
            return launch.isdigit() and int(launch) < below

        try:
            n_ended, stuck = end_descendants(is_leftover, deadline_s=FORCED_STOP_S), ""
        except ProcessesStillRunningError as error:
            n_ended, stuck = 0, str(error)
        self._send("leftovers-ended", ended=n_ended, stuck=stuck)


def _create_private(folder: Path) -> bool:
    """Create a folder that only we can use; return False if there is one already.

    Raises
    ------
    PermissionError
        If the folder exists and others can use it: its name is not secret, so somebody may have created it before us.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} exists and others can use it") from None
        return False
    return True


def main(arguments: Sequence[str] = ()) -> int:
    """Run the agent.

    Parameters
    ----------
    arguments
        ``--dials`` if the controller is on another machine: then it sends an invitation to standard input. Otherwise
        standard input and output are the pipe to it, and the argument is for how many seconds it may be silent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller's to handle: it closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm's, some time before the end, to every step of the job
        signal.signal(warning, signal.SIG_IGN)  # as our helpers do, which inherit it; the program's start undoes it
    configure_logging()
    try:
        with contextlib.suppress(BrokenPipeError):
            if DIALS in arguments:
                _run_dialling()
            else:
                _run_on_pipes(*map(float, arguments))
    except ProcessesStillRunningError as error:
        print(f"laggard: {error}", file=sys.stderr)
        return 1
    return 0


def _run_dialling() -> None:
    from laggard.resilience.agent.dialling import Dialled, read_invitation  # most agents of one machine need no TLS

    invitation = read_invitation(sys.stdin.fileno())
    if not invitation.agent:
        invitation = invitation.of_node(own_name())
    controller = Dialled(invitation, sys.stdin.fileno())
    try:
        with os.fdopen(controller.commands, "rb") as commands:
            n_nodes = invitation.n_nodes
            Agent(commands, controller.answers, Pace(n_nodes).lease_s, OTHERS_S, n_nodes).run()
    finally:
        controller.finish()


def _run_on_pipes(lease_s: float = LEASE_S) -> None:
    # Not sys.stdout: under PYTHONUNBUFFERED it loses the rest of a long message if a signal interrupts the write.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as answers:
        Agent(sys.stdin.buffer, answers, lease_s).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
