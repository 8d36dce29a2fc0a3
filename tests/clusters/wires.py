"""Real wires: four machines behind a switch, whose rates ``tc`` caps, and what a detector of slow links says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from tests.clusters.machines import Machine, wait_for
from tests.clusters.site import Site

__all__ = ["DEADLINE_S", "LINE_MBPS", "NODES", "REPOSITORY", "Wires"]

NODES = ("node1", "node2", "node3", "node4")  # as the documents call them
LINE_MBPS = 200
"""Slow enough for the wires, not this machine's processors, to be what is measured."""
DEADLINE_S = 300.0
REPOSITORY = Path(__file__).parents[2]

# Sends as fast as it can, or takes what it is sent, until it is killed.
_FLOW = """
import socket, sys
if len(sys.argv) == 2:
    listener = socket.create_server((sys.argv[1], 9999))
    print("ready", flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 20):
        pass
else:
    connection = socket.create_connection((sys.argv[1], 9999))
    while True:
        connection.sendall(bytes(1 << 20))
"""


class Wires:
    """Four machines that probe their links, and what their detector says.

    Parameters
    ----------
    folder
        For the files of all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.site = Site(folder, NODES)
        self.network = self.site.network
        for name, node in self.network.nodes.items():
            node.run("mount", "-t", "sysfs", "sysfs", "/sys")  # that of the machine's own network
            self.slow(name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said = folder / "said"

    def slow(self, name: str, *, send: float = 1.0, receive: float = 1.0) -> None:
        """Have a node send and receive this many times as slowly as the line allows."""
        send_kbps, receive_kbps = (f"{1000 * LINE_MBPS / times:.0f}kbit" for times in (send, receive))
        self.network.cap(name, send=send_kbps, receive=receive_kbps)

    def start(self, probe: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the state server, and on all nodes the probes.

        Parameters
        ----------
        probe
            The command that probes a node's links, and on the first node judges them.
        environment
            Of this command.
        """
        nodes = [f"{name}={node.address}" for name, node in self.network.nodes.items()]
        address = self.network.login.address
        judge = [sys.executable, "-m", "tests.clusters.link_judge", str(self.folder), address, *nodes]
        self._run(self.network.login, "said", {}, *judge)
        wait_for(lambda: "ready" in self.said, "the state server", DEADLINE_S)
        for name, node in self.network.nodes.items():
            of_node = {ENDPOINT_FILE: str(self.folder / "endpoint.json"), LAUNCH: "0", NODE: name, **environment}
            self._run(node, f"{name}.log", of_node, *probe)

    def compete(self, sender: str, receiver: str) -> None:
        """Fill the link between two nodes with other traffic."""
        receiving, sending = self.network.nodes[receiver], self.network.nodes[sender]
        flow = [sys.executable, "-c", _FLOW, receiving.address]
        self._run(receiving, f"to-{receiver}", {}, *flow)
        wait_for(lambda: "ready" in (self.folder / f"to-{receiver}").read_text(), "the receiver", DEADLINE_S)
        self._run(sending, f"from-{sender}", {}, *flow, "sends")

    def _run(self, machine: Machine, output: str, environment: Mapping[str, str], *argv: str) -> None:
        with (self.folder / output).open("wb") as file:
            started = machine.start(*argv, output=file, cwd=REPOSITORY, environment={**os.environ, **environment})
        self._processes.append(started)

    @property
    def said(self) -> str:
        """What the judge has printed."""
        return self._said.read_text()

    def history(self) -> list[tuple[int, str, Any]]:
        """Return what the detector has said by now: after how many rounds, a verdict or a notice, and what it says."""
        found, rounds = list[tuple[int, str, Any]](), 0
        for kind, body in (json.loads(line) for line in self.said.splitlines() if line.startswith("[")):
            if kind == "rounds":
                rounds = body
            else:
                found.append((rounds, kind, body))
        return found

    def requests(self, kind: str) -> list[Any]:
        """Return the verdicts or the notices by now."""
        return [body for _, each, body in self.history() if each == kind]

    @property
    def n_rounds(self) -> int:
        """How many rounds the nodes have reported."""
        return max((json.loads(line)[1] for line in self.said.splitlines() if line.startswith('["rounds"')), default=0)

    def verdict(self) -> dict[str, Any]:
        """Wait for the first verdict."""
        self.wait_for("verdicts")
        return dict(self.requests("verdicts")[0])

    def wait_for(self, kind: str, pattern: str = "") -> None:
        """Wait for a verdict or a notice."""

        def look() -> bool:
            return any(re.search(pattern, json.dumps(each)) for each in self.requests(kind))

        try:
            wait_for(look, f"{kind} {pattern}", DEADLINE_S)
        except AssertionError as error:
            logs = "\n".join(file.read_text() for file in self.folder.glob("*.log"))
            raise AssertionError(f"{error}\n{self.said}\n{logs}") from None

    def shut_down(self) -> None:
        """End everything."""
        self.network.shut_down()
        for process in self._processes:
            process.wait(DEADLINE_S)
