"""A node as the controller sees it: its agent at the other end of a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal, Protocol

from kvstore.control import NodeRecord

__all__ = ["AgentProcess", "Node", "Output"]

RAY_COMMAND = (sys.executable, "-m", "resilience.ray_node")

RayStatus = Literal["down", "up", "ended"]
Output = Callable[[str, bytes], None]
"""Takes a stream's name and some of what was written there; nothing at the task's end."""


class AgentProcess(Protocol):
    """A node's agent: a process of ours, or of somebody who speaks with it for us."""

    @property
    def pid(self) -> int:
        """The process on this machine."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe to it."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe from it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, as :meth:`subprocess.Popen.wait` does."""

    def kill(self) -> None:
        """End it at once."""


class Node:
    """The controller's end of one agent.

    A thread reads what the agent says and keeps the attributes current; each change is announced on ``news``.

    Attributes
    ----------
    record
        Host name, address and devices.
    gone
        The agent's pipe has closed.
    heard_s
        When the agent was last heard, on ``clock``.
    spoke
        Whether it was heard at all: until then it is starting.
    ray
        ``down``: not started, or stopped as asked; ``up``: running; ``ended``: it ended by itself.
    answered
        It has answered since it was last asked.
    swept
        How many leftover processes the last sweep ended; ``None`` while it runs.
    last_words
        The end of Ray's log, once Ray has ended.
    task_exits
        Exit codes of the tasks that have ended, by name.
    """

    def __init__(
        self,
        record: NodeRecord,
        agent: AgentProcess,
        news: threading.Condition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record = record
        self.gone = False
        self.heard_s = clock()
        self.spoke = False
        self.ray: RayStatus = "down"
        self.answered = False
        self.swept: int | None = 0
        self.last_words = ""
        self._agent = agent
        self._news = news
        self._clock = clock
        self._stopping = False
        self._warm = False
        self._sidecars: set[str] = set()
        self.task_exits: dict[str, int] = {}
        self._outputs: dict[str, Output] = {}
        self._told: set[str] = set()  # tasks that were sent a signal
        self._speaking = threading.Lock()
        self._notices: list[str] = []
        self._reader = threading.Thread(target=self._read, name=f"agent-{record.hostname}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The agent's process on this machine."""
        return self._agent.pid

    def set_up(self, directory: str, files: dict[str, str], environment: dict[str, str]) -> None:
        """Have the agent write the node's private files and remember its environment."""
        self._say(do="set-up", directory=directory, files=files, environment=environment)

    def warm_up(self) -> None:
        """Have the agent load Ray ahead of time."""
        if not self._warm:
            self._warm = True
            self._say(do="warm-up", command=RAY_COMMAND)

    def start_ray(self, arguments: list[str]) -> None:
        """Have the agent start the node's Ray processes with these arguments of the ``ray`` command."""
        self._stopping = False
        self._warm = True
        self.ray = "up"
        self._say(do="start-ray", command=RAY_COMMAND, arguments=arguments)

    def stop_ray(self) -> None:
        """Have the agent end the node's Ray processes; ``ray`` becomes ``down`` when that is done."""
        self._stopping = True
        self._say(do="stop-ray")

    def start_sidecar(self, name: str, command: list[str]) -> None:
        """Have the agent start a process that lasts as long as itself, unless it has done so already."""
        if name not in self._sidecars:
            self._sidecars.add(name)
            self._say(do="start-sidecar", name=name, command=command)

    def stop_sidecar(self, name: str) -> None:
        """Have the agent end such a process, if there is one."""
        if name in self._sidecars:
            self._sidecars.remove(name)
            self._say(do="stop-sidecar", name=name)

    def start_task(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        directory: str | None = None,
        output: Output | None = None,
    ) -> None:
        """Have the agent start a process of one launch; ``task_exits`` tells its end.

        Parameters
        ----------
        name
            Another one for each launch.
        command
            Command line.
        environment
            Variables beside the node's own; the launch's number must be among them.
        directory
            Where it runs; by default in the node's private folder.
        output
            Is given ``stdout`` or ``stderr`` and what was written there, and must not block; :meth:`printed` is to
            follow. Where there is none, the output goes to a log.
        """
        if output is not None:
            self._outputs[name] = output
        self._say(
            do="start-task",
            name=name,
            command=list(command),
            environment=dict(environment),
            directory=directory,
            relayed=output is not None,
        )

    def signal_task(self, name: str, signum: int) -> None:
        """Have the agent send a signal to a task, if it runs: its end is no news then."""
        self._told.add(name)
        self._say(do="signal-task", name=name, signal=signum)

    def printed(self, n_bytes: int) -> None:
        """Tell the agent that so much of its tasks' output was taken: only then do they write on. From any thread."""
        self._say(do="printed", bytes=n_bytes)

    def take_notices(self) -> list[str]:
        """Return what the user should hear of this node, once."""
        with self._news:
            notices, self._notices = self._notices, []
        return notices

    def give_up(self) -> None:
        """Take Ray on the node for ended: it did not do what it should in time."""
        self.ray = "ended"

    def ask(self) -> None:
        """Have the agent answer; what it has noticed by then it tells before."""
        self.answered = False
        self._say(do="answer")

    def sweep(self, below: int) -> None:
        """Have the agent end what is left of launches below a number; ``swept`` tells when that is done."""
        self.swept = None
        self._say(do="sweep", below=below)

    def close(self) -> None:
        """Close the pipe: the agent ends everything that it started, then itself."""
        try:
            if self._agent.stdin is not None:
                with self._speaking:
                    self._agent.stdin.close()
        except BrokenPipeError:
            self.gone = True  # it ended before us

    def wait(self, deadline_s: float) -> None:
        """Wait for the agent to end; kill it at the deadline."""
        try:
            self._agent.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        self._reader.join(deadline_s)

    def kill(self) -> None:
        """End the agent at once, without asking it to end anything."""
        self.close()
        self._agent.kill()
        self.wait(0)

    def _say(self, **command: object) -> None:
        if self._agent.stdin is None:
            raise ValueError("the agent was started without a pipe")
        try:
            with self._speaking:
                if self._agent.stdin.closed:
                    return
                self._agent.stdin.write(json.dumps(command).encode() + b"\n")
                self._agent.stdin.flush()
        except BrokenPipeError:
            self._announce_gone()

    def _announce_gone(self) -> None:
        with self._news:
            self.gone = True
            self._news.notify_all()

    def _read(self) -> None:
        if self._agent.stdout is None:
            raise ValueError("the agent was started without a pipe")
        with self._agent.stdout as lines:
            for line in lines:
                message = json.loads(line)
                self._hear(message)
                if message["event"] == "alive":
                    self._say(do="go-on")  # so it knows that we live too; to an agent that is silent nothing is said
        self._announce_gone()

    def _hear(self, message: dict[str, object]) -> None:
        if message["event"] == "task-ended" and (output := self._outputs.get(str(message["name"]))):
            output("stdout", b"")
            output("stderr", b"")
        if message["event"] == "output":  # no news for the controller
            self.heard_s = self._clock()
            data = str(message["text"]).encode(errors="surrogateescape")
            self._outputs[str(message["name"])](str(message["stream"]), data)
            return
        with self._news:
            self.heard_s, self.spoke = self._clock(), True
            match message["event"]:
                case "ray-ended":
                    self.ray = "down" if self._stopping else "ended"
                    self.last_words = str(message.get("last_words", ""))
                case "task-ended":
                    name, exit_code = str(message["name"]), int(str(message["exit_code"]))
                    self.task_exits[name] = exit_code
                    if name not in self._outputs and name not in self._told:
                        self._notices.append(f"{name} ended with exit code {exit_code}; it stays down")
                case "here":
                    self.answered = True
                case "swept":
                    self.swept = int(str(message["ended"]))
                case "sidecar-ended":
                    self._notices.append(
                        f"{message['name']} ended with exit code {message['exit_code']}; it stays down"
                    )
            if message["event"] != "alive":  # else each of many nodes would have all of them looked at twice a second
                self._news.notify_all()
