"""The controller's end of the pipe to one node's agent."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent import ALIVE, KEEP_ALIVE
from laggard.resilience.agent.channel import Channel
from laggard.resilience.allocation.base import AgentProcess, Messages
from laggard.resilience.decision.evidence import NodeCheck
from laggard.resilience.decision.stacks import RankStack
from laggard.resilience.text import duration
from laggard.system.clock_offset import ClockOffset

__all__ = ["Node", "Output", "TaskEnd"]

_log = logging.getLogger("laggard.resilience.nodes")

RAY_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.ray.node")

KILL_DEADLINE_S = 2.0

_NOT_LOGGED = {"output", "printed", "log"}  # there are too many of them
# Lines end with a line feed where they come through a pipe, and without it where through a channel.
_ALIVE, _KEEP_ALIVE = ALIVE.rstrip().encode(), KEEP_ALIVE.encode()

RayStatus = Literal["down", "up", "ended"]
Output = Callable[[str, bytes], None]
"""Called with a stream's name and a piece of its output, which is empty at the end of the task."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a task, as its agent reported it.

    Attributes
    ----------
    exit_code
        Minus the signal number if it was killed by a signal.
    pid
        Its process id on the node; 0 if it could not be started.
    ended_s
        Unix time by the clock of its node.
    ran_s
        How long it ran, in seconds.
    error_output
        The end of its standard error; empty if that went to a log.
    """

    exit_code: int
    pid: int
    ended_s: float
    ran_s: float
    error_output: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> TaskEnd:
        """Return what an agent's message says."""
        return cls(
            int(message["exit_code"]),
            int(message["pid"]),
            float(message["ended_s"]),
            float(message["ran_s"]),
            str(message["error_output"]),
        )


class Node:
    """One node, by way of its agent: methods send commands, attributes hold what the agent has reported.

    A thread reads the agent's messages and keeps the attributes current: one for each pipe, or one for all channels.

    Parameters
    ----------
    record
        Host name, address and devices.
    agent
        The agent's process.
    changed
        Notified at every change of an attribute.
    clock
        Seconds, for ``last_heard_s``.

    Attributes
    ----------
    record
        As given.
    gone
        Whether the agent's pipe has closed.
    last_heard_s
        When the agent last sent something, by ``clock``.
    has_started
        Whether the agent has sent anything yet.
    ray
        ``down``: not started, or stopped by us; ``up``: running; ``ended``: ended on its own.
    answered
        Whether the agent has answered the last ping.
    leftovers_ended
        How many processes the last `end_leftovers` ended; ``None`` until it is done.
    stuck
        What the last `end_leftovers` could not end; empty if nothing is left.
    told_to_end
        Whether somebody else, such as Slurm, has told the agent to end; it does so when its tasks had time to save.
    last_words
        The end of Ray's log, once Ray has ended.
    task_starts
        By name of each task that might have been forked from the warm process and has started: why it was not, or
        nothing.
    task_ends
        How each task ended, by name, once it has.
    warm
        What the agent has said of its warm process and nobody has taken yet.
    hooked
        Whether the program's Python has run our code at its start.
    imports
        What the program has imported on it before it was at work.
    logs
        The end of each log of the node, by file name, once the agent has sent them.
    logs_sent
        Whether the agent has sent all of them.
    first_check, last_check
        The node's state when the job began, and when it was checked last; None: not known.
    clock
        How far the node's clock is from ours, by the ping with the shortest round trip; None: not known yet.
    stacks
        Where the ranks on it stand, by the last `dump_stacks`; ``None`` until it is done.
    error_output
        What each of its running tasks had written last to its standard error by then.
    """

    def __init__(
        self,
        record: NodeRecord,
        agent: AgentProcess,
        changed: threading.Condition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record = record
        self.gone = False
        self.last_heard_s = clock()
        self.has_started = False
        self.ray: RayStatus = "down"
        self.answered = False
        self.leftovers_ended: int | None = 0
        self.stuck = ""
        self.told_to_end = False
        self.last_words = ""
        self._agent = agent
        self._changed = changed
        self._clock = clock
        self._stopping = False
        self._warm = False
        self._sidecars: set[str] = set()
        self.task_starts: dict[str, str] = {}
        self.task_ends: dict[str, TaskEnd] = {}
        self.warm: list[Mapping[str, object]] = []
        self.hooked = False
        self.imports: tuple[str, ...] = ()
        self.logs: dict[str, str] = {}
        self.logs_sent = False
        self.first_check: NodeCheck | None = None
        self.last_check: NodeCheck | None = None
        self.clock: ClockOffset | None = None
        self._pinged_s = 0.0
        self._directory = ""
        self._checks_asked = self._checks_answered = 0
        self.stacks: list[RankStack] | None = []
        self.error_output: Mapping[str, str] = {}
        self._outputs: dict[str, Output] = {}
        self._signalled: set[str] = set()  # tasks, by name
        self._sending = threading.Lock()
        self._notices: list[str] = []
        self._unread = b""
        self._reader: threading.Thread | None = None
        if isinstance(agent.stdout, Channel):
            agent.stdout.read(partial(self._take, agent.stdout), self._mark_gone)
        elif agent.stdout is not None:
            arguments = (agent.stdout,)
            self._reader = threading.Thread(
                target=self._read, args=arguments, name=f"agent-{record.hostname}", daemon=True
            )
            self._reader.start()

    @property
    def checked(self) -> bool:
        """Whether the last check that was asked for is done."""
        return self._checks_answered == self._checks_asked

    @property
    def pid(self) -> int:
        """Process id, on this machine, of the agent or of what connects us to it."""
        return self._agent.pid

    def set_up(self, directory: str, files: dict[str, str], environment: dict[str, str], n_nodes: int) -> None:
        """Have the agent write the node's private files, and use an environment and the pace of so many nodes."""
        self._directory = directory
        self._send(do="set-up", directory=directory, files=files, environment=environment, n_nodes=n_nodes)

    def path_of(self, name: str) -> str:
        """Return the path, on the node, of a private file."""
        return f"{self._directory}/{name}"

    def warm_up(self) -> None:
        """Have the agent load Ray ahead of time."""
        if not self._warm:
            self._warm = True
            self._send(do="warm-up", command=RAY_COMMAND)

    def start_ray(self, arguments: list[str]) -> None:
        """Have the agent start the node's Ray processes with these arguments to the ``ray`` command."""
        self._stopping = False
        self._warm = True
        self.ray = "up"
        self._send(do="start-ray", command=RAY_COMMAND, arguments=arguments)

    def stop_ray(self) -> None:
        """Have the agent end the node's Ray processes; ``ray`` becomes ``down`` once that is done."""
        self._stopping = True
        self._send(do="stop-ray")

    def start_sidecar(self, name: str, command: list[str]) -> None:
        """Have the agent start a process that runs as long as the agent, unless it has already done so."""
        if name not in self._sidecars:
            self._sidecars.add(name)
            self._send(do="start-sidecar", name=name, command=command)

    def stop_sidecar(self, name: str) -> None:
        """Have the agent end such a process, if it runs."""
        if name in self._sidecars:
            self._sidecars.remove(name)
            self._send(do="stop-sidecar", name=name)

    def start_task(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        files: Mapping[str, str] | None = None,
        directory: str | None = None,
        output: Output | None = None,
        restarts: bool = False,
        writes_stacks: bool = False,
        may_be_warm: bool = False,
        records_imports: bool = False,
    ) -> None:
        """Have the agent start a process of one launch; its end will be in ``task_ends``.

        Parameters
        ----------
        name
            Name of the task, a different one for each launch.
        command
            Command line.
        environment
            Variables in addition to the node's own; the launch number must be among them.
        files
            Private files of the node that it needs, by name.
        directory
            Working directory; by default the node's private folder.
        output
            Called with ``stdout`` or ``stderr`` and what was written there. It must not block, and :meth:`printed` has
            to be called once the output is printed. By default the output goes to a log.
        restarts
            Whether the agent starts it again, after a wait that grows, when it ends without a signal of ours.
        writes_stacks
            Whether its Python processes are to write their stacks when the agent asks for them.
        may_be_warm
            Whether it is forked from the warm process if that is possible; ``task_starts`` says.
        records_imports
            Whether it records what it imports; that will be in ``imports``.
        """
        if output is not None:
            self._outputs[name] = output
        self._send(
            do="start-task",
            name=name,
            command=list(command),
            environment=dict(environment),
            files=dict(files or {}),
            directory=directory,
            relayed=output is not None,
            restarts=restarts,
            writes_stacks=writes_stacks,
            may_be_warm=may_be_warm,
            records_imports=records_imports,
        )

    def keep_warm(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        varying: Sequence[str],
        directory: str,
        modules: Sequence[str],
        asked: Sequence[str],
        writes_stacks: bool,
    ) -> None:
        """Have the agent keep a warm process, from which tasks with this command are then forked.

        Parameters
        ----------
        command, environment, directory, writes_stacks
            As for :meth:`start_task`, without the variables that each launch or task has its own of.
        varying
            The names of these.
        modules
            Modules to load if they are installed libraries.
        asked
            Modules to load in any case.
        """
        self._send(
            do="keep-warm",
            command=list(command),
            environment=dict(environment),
            varying=list(varying),
            directory=directory,
            modules=list(modules),
            asked=list(asked),
            writes_stacks=writes_stacks,
        )

    def fork_ahead(self, n_tasks: int) -> None:
        """Have the agent fork processes for tasks that are about to start, if it has a warm process."""
        self._send(do="fork-ahead", tasks=n_tasks)

    def take_warm_news(self) -> list[Mapping[str, object]]:
        """Return what is new about the warm process."""
        with self._changed:
            news, self.warm = self.warm, []
        return news

    def signal_task(self, name: str, signum: int) -> None:
        """Have the agent send a signal to a task, if it runs; its end is then not reported to the user."""
        self._signalled.add(name)
        self._send(do="signal-task", name=name, signal=signum)

    def printed(self, n_bytes: int) -> None:
        """Tell the agent how many bytes of output were printed, so that it passes on more. From any thread."""
        self._send(do="printed", bytes=n_bytes)

    def take_notices(self) -> list[str]:
        """Return the new messages for the user about this node."""
        with self._changed:
            notices, self._notices = self._notices, []
        return notices

    def note(self, notice: str) -> None:
        """Add a message for the user about this node."""
        with self._changed:
            self._notices.append(notice)

    def mark_ray_ended(self) -> None:
        """Treat Ray on the node as ended, since it did not start or left the cluster."""
        self.ray = "ended"

    def ping(self) -> None:
        """Have the agent answer, after it has reported everything that it has noticed by then."""
        self.answered = False
        self._pinged_s = time.time()
        self._send(do="ping")

    def send_logs(self) -> None:
        """Have the agent send the end of each log on its node; ``logs_sent`` is set once all are in ``logs``."""
        self.logs_sent = False
        self._send(do="send-logs")

    def check(self, devices: Sequence[str], *, probe: bool = False) -> None:
        """Have the agent check its node and these GPUs, and probe them; the result will be in ``last_check``."""
        self._checks_asked += 1
        self._send(do="check-node", devices=list(devices), probe=probe)

    def dump_stacks(self, launch: int) -> None:
        """Have the agent find out where a launch's ranks stand; the result will be in ``stacks``."""
        self.stacks = None
        self._send(do="dump-stacks", launch=launch)

    def end_leftovers(self, below: int) -> None:
        """Have the agent end what is left of launches below a number; ``leftovers_ended`` is set once that is done."""
        self.leftovers_ended = None
        self._send(do="end-leftovers", below=below)

    def close(self) -> None:
        """Close the pipe: the agent then ends everything that it started, and itself."""
        try:
            if self._agent.stdin is not None:
                with self._sending:
                    self._agent.stdin.close()
        except BrokenPipeError:
            self.gone = True  # it has ended already

    def wait(self, deadline_s: float) -> None:
        """Wait for the agent to end; kill it at the deadline."""
        try:
            self._agent.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # held in the kernel: it runs nothing more
                self._agent.wait(KILL_DEADLINE_S)
        if self._reader is not None:
            self._reader.join(deadline_s)

    def kill(self) -> None:
        """Kill the agent, without letting it end anything first."""
        self.close()
        self._agent.kill()
        self.wait(0)

    def _send(self, **command: object) -> None:
        if command["do"] not in _NOT_LOGGED:
            _log.debug("to %s: %s %s", self.record.hostname, command["do"], command.get("name", ""))
        self._write(json.dumps(command).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._agent.stdin is None:
            raise ValueError("the agent was started without a pipe")
        try:
            with self._sending:
                if self._agent.stdin.closed:
                    return
                self._agent.stdin.write(line)
                self._agent.stdin.flush()
        except BrokenPipeError:
            self._mark_gone()

    def _take_check(self, read: Any) -> None:
        self.last_check = None if read is None else NodeCheck.of_json(read)
        self.first_check = self.first_check or self.last_check
        self._checks_answered += 1

    def _take_time(self, answered_s: float) -> None:
        measured = ClockOffset.of_ping(self._pinged_s, answered_s, time.time())
        if measured.is_much and not (self.clock and self.clock.is_much):
            where = "ahead of" if measured.offset_s > 0 else "behind"
            self._notices.append(f"its clock is {duration(abs(measured.offset_s))} {where} the primary's")
        if self.clock is None or measured.uncertainty_s <= self.clock.uncertainty_s:
            self.clock = measured

    def _mark_gone(self) -> None:
        with self._changed:
            self.gone = True
            self._changed.notify_all()

    def _read(self, pipe: Messages) -> None:
        try:
            with pipe as lines:
                for line in lines:
                    self._take_line(line)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody reads on: the node is lost, and the user told
            self._note_unreadable(error)
        finally:
            self._mark_gone()

    def _take(self, channel: Channel, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            for line in lines:
                self._take_line(line)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_unreadable(error)
            channel.abandon()

    def _note_unreadable(self, error: Exception) -> None:
        _log.error("messages of %s cannot be read", self.record.hostname, exc_info=error)
        self.note(f"its agent's messages cannot be read ({type(error).__name__}: {error})")

    def _take_line(self, line: bytes) -> None:
        if line.startswith(_ALIVE):  # not parsed: of a thousand agents there are a thousand a second
            self.last_heard_s, self.has_started = self._clock(), True
            self._write(_KEEP_ALIVE)  # we are alive too; a silent agent gets no reply
        else:
            self._handle_message(json.loads(line))

    def _handle_message(self, message: dict[str, object]) -> None:
        if message["event"] not in _NOT_LOGGED:
            _log.debug("from %s: %s", self.record.hostname, message)
        if message["event"] == "task-ended" and (output := self._outputs.get(str(message["name"]))):
            output("stdout", b"")
            output("stderr", b"")
        if message["event"] == "output":  # nothing that the controller waits for
            self.last_heard_s = self._clock()
            data = str(message["text"]).encode(errors="surrogateescape")
            self._outputs[str(message["name"])](str(message["stream"]), data)
            return
        with self._changed:
            self.last_heard_s, self.has_started = self._clock(), True
            match message["event"]:
                case "ray-ended":
                    self.ray = "down" if self._stopping else "ended"
                    self.last_words = str(message.get("last_words", ""))
                case "task-started":
                    self.task_starts[str(message["name"])] = str(message["why_not"])
                case "warm":
                    self.warm.append(message)
                case "hooked":
                    self.hooked = True
                case "imports":
                    self.imports = tuple(map(str, _list(message["names"])))
                case "task-ended":
                    name = str(message["name"])
                    self.task_ends[name] = TaskEnd.of(message)
                    if name not in self._outputs and name not in self._signalled:
                        self._notices.append(_end_of(message))
                case "pong":
                    self.answered = True
                    self._take_time(float(str(message["time_s"])))
                case "told-to-end":
                    self.told_to_end = True
                case "leftovers-ended":
                    self.leftovers_ended, self.stuck = int(str(message["ended"])), str(message["stuck"])
                case "sidecar-ended" | "task-restarts":
                    self._notices.append(_end_of(message))
                case "log":
                    self.logs[str(message["name"])] = str(message["text"])
                case "logs-sent":
                    self.logs_sent = True
                case "node-checked":
                    self._take_check(message["found"])
                case "error-output":
                    self.error_output = cast("Mapping[str, str]", message["of"])
                case "stacks":
                    self.stacks = [RankStack.of_json(self.record.hostname, each) for each in _list(message["found"])]
                case "crashed":
                    self._notices.append(f"its agent crashed: {message['why']}")
            self._changed.notify_all()


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []  # null if there was no answer in time


def _end_of(message: Mapping[str, object]) -> str:
    # The last line of a process that was killed is about something else.
    why = f": {message['why']}" if message.get("why") and int(str(message["exit_code"])) > 0 else ""
    next_s = message.get("again_s")
    then = "it stays down" if next_s is None else f"it will be restarted in {duration(float(str(next_s)))}"
    return f"{message['name']} ended with exit code {message['exit_code']}; {then}{why}"
