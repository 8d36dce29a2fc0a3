"""Nodes that copy State, without a controller: each has a state directory of its own on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil

from laggard.kvstore.client.environment import ENDPOINT_FILE
from laggard.kvstore.client.fence import begin_launch, current_launch
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.agent.processes import AGENT_MARK
from laggard.resilience.command.take_over import Begun, begin_term
from laggard.resilience.controller.state_copies import StateCopies
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from tests.waiting import DEADLINE_S, wait_until

__all__ = ["HOSTS", "CopiedState", "Counting", "Term", "lose_primary"]

HOSTS = ("n1", "n2", "n3")


class Term:
    """What runs while one node is the primary: its state server, the controller's part, and the nodes' parts.

    Parameters
    ----------
    root
        Holds a folder for each node.
    hosts
        The nodes, the primary first.
    missing
        Those that do not answer.
    """

    def __init__(self, root: Path, hosts: Sequence[str], missing: Sequence[str] = ()) -> None:
        self.hosts = hosts
        self._root = root
        self._missing = set(missing)
        self.begun: Begun = begin_term(root / hosts[0], "job", hosts, dict.fromkeys(missing, "gone"), self._run_on)
        self.server = StateServer.start(root / hosts[0], job="job")
        self.client = self.server.endpoint.connect()
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.changed = threading.Condition()
        self.copies = StateCopies(self.server.endpoint, root / hosts[0], self.begun.record, self.changed)
        launch = 1 + (-1 if (last := current_launch(self.client, self.server.endpoint)) is None else last)
        begin_launch(self.client, self.server.endpoint, launch)
        self._launch = launch
        self.state = self.connect(DEADLINE_S)
        self.told: list[str] = []

    def _run_on(self, host: str, argv: Sequence[str]) -> list[str]:
        return [word.replace(str(self._root / self.hosts[0]), str(self._root / host)) for word in argv]

    def connect(self, retry_for_s: float) -> State:
        """Return State as a program of this term has it."""
        return State(self.client, self.server.endpoint, self._launch, retry_for_s=retry_for_s)

    def look(self, *candidates: str) -> None:
        """Have the controller's part know the nodes; the first candidate is to have the copy."""
        nodes = {host: self._node(host) for host in self.hosts if host not in self._missing}
        seen = {host: node for host, node in nodes.items() if host in (*candidates, self.hosts[0])}
        roster = Roster((self.hosts[0],), candidates)
        self.copies.look(cast("Cluster", SimpleNamespace(nodes=seen)), roster)
        for host in nodes:
            self._start(host)

    def _node(self, host: str) -> Any:
        folder = self._root / host / "private"
        return SimpleNamespace(start_sidecar=lambda _name, _command: self._start(host), path_of=lambda _: str(folder))

    def _start(self, host: str) -> None:
        """Start a node's part, as its agent does."""
        if host in self.parts:
            return
        folder = self._root / host / "private"
        folder.mkdir(parents=True, exist_ok=True)
        self.server.endpoint.save(folder / "endpoint.json")
        module = "laggard.resilience.agent.state_copy"
        environment = {**os.environ, ENDPOINT_FILE: str(folder / "endpoint.json")}
        if host != self.hosts[0]:  # the primary's own agent has no mark
            environment[AGENT_MARK] = f"{self._root}-{host}-{self.begun.record.term}"
        with (folder / "state-copy.log").open("ab") as log:
            self.parts[host] = subprocess.Popen(
                [os.sys.executable, "-P", "-m", module, str(folder), str(self._root / host), host],  # type: ignore[attr-defined]
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def restart(self, host: str) -> None:
        """Start a node's part again, after it was ended."""
        with self.parts.pop(host) as part:
            part.wait(DEADLINE_S)
        self._start(host)

    def wait_for(self, text: str) -> None:
        """Wait until the user is told something."""

        def look() -> bool:
            while self.copies.messages:
                self.told.append(self.copies.messages.popleft())
            assert self.copies.failure is None, self.copies.failure
            return any(text in message for message in self.told)

        wait_until(look, lambda: f"no {text!r}: {self.told}")
        self.told.clear()

    def processes(self, host: str) -> list[psutil.Process]:
        """Return what a node runs for the copy."""
        part = psutil.Process(self.parts[host].pid)
        return [part, *part.children(recursive=True)]

    def send_signal(self, signum: signal.Signals, *hosts: str) -> None:
        """Send a signal to everything of some nodes."""
        for process in (each for host in hosts for each in self.processes(host)):
            process.send_signal(signum)

    def kill_server(self) -> None:
        """Kill the state server, as the power failure of the primary does."""
        os.kill(self.server.pid, signal.SIGKILL)

    def end(self) -> None:
        """End everything, as it is."""
        for part in self.parts.values():
            if part.poll() is None:
                whole = psutil.Process(part.pid)
                for process in (*whole.children(recursive=True), whole):
                    process.kill()
            with part:  # which closes its standard input
                part.wait(DEADLINE_S)
        self.server.kill()
        self.server.stop()
        self.copies.stop()
        self.client.close()


class CopiedState:
    """A job with one term after another.

    Parameters
    ----------
    root
        Holds a folder for each node.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.terms: list[Term] = []

    def begin(self, *hosts: str, missing: Sequence[str] = ()) -> Term:
        """Begin a term whose primary is the first of the hosts."""
        self.terms.append(Term(self._root, hosts, missing))
        return self.terms[-1]

    def end(self) -> None:
        """End all terms, for the fixture."""
        for term in self.terms:
            term.end()


class Counting:
    """A program that appends numbers to State and remembers which were acknowledged."""

    def __init__(self, term: Term, retry_for_s: float = 0.5) -> None:
        self.acknowledged: list[int] = []
        self._state = term.connect(retry_for_s)
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        number = len(self._state.get("numbers", []))
        try:
            while True:
                self._state.append("numbers", number)
                self.acknowledged.append(number)
                number += 1
        except KVStoreError:
            pass

    def wait_for_more(self, more: int = 20) -> None:
        """Wait for this many commits."""
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough)

    def finish(self) -> list[int]:
        """Wait until no commit is acknowledged any more, and return those that were."""
        self._thread.join(DEADLINE_S)
        return self.acknowledged


def lose_primary(job: CopiedState, term: Term, holder: str, taker: str) -> Term:
    """Count, kill the primary's server and then the copy's, take over, and expect what was acknowledged."""
    primary = term.hosts[0]
    term.look(holder)
    term.wait_for(f"{holder} has a copy")
    counting = Counting(term)
    counting.wait_for_more()
    assert all(part.poll() is None for part in term.parts.values())
    term.kill_server()
    for process in term.processes(holder):
        process.kill()
    acknowledged = counting.finish()
    new = job.begin(taker, *(host for host in HOSTS if host != taker), missing=(primary,))
    assert new.begun.taken_over == f"{primary} has it no more: taken over from the copy on {holder}"
    found = new.state["numbers"]
    assert found == list(range(len(found)))
    assert set(acknowledged) <= set(found)
    assert len(found) <= acknowledged[-1] + 2  # the last may have been committed without an answer
    return new
