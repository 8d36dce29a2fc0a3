"""A program without Ray: a copy of it on every node of the launch, with the variables that tell them of each other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvstore.environment import LAUNCH
from resilience.node import Node
from resilience.printer import Lines, Printer

__all__ = ["Copies", "rank_variables", "verdict_on"]

# Into a pipe Python writes in blocks, and a block may be an hour's worth of lines.
UNBUFFERED = "PYTHONUNBUFFERED"


def rank_variables(rank: int, n_nodes: int, address: str, port: int) -> dict[str, str]:
    """Return the variables of one copy: those that PyTorch's documents name, and the defaults of torchrun's options.

    With the latter, ``torchrun train.py`` needs no ``--nnodes``, ``--node-rank`` or ``--master-addr`` of its own:
    its options take their defaults from ``PET_*`` (``torch.distributed.argparse_util``).

    Parameters
    ----------
    rank, n_nodes
        Which node it is, from 0, and how many there are.
    address, port
        Where the copy of the primary node may listen.
    """
    ranks = {"NODE_RANK": str(rank), "NNODES": str(n_nodes), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return ranks | {f"PET_{name}": value for name, value in ranks.items()}


def verdict_on(exits: Sequence[int | None]) -> int | None:
    """Return the exit code of all copies together; None while there is none. Pure.

    A copy that died by a signal explains why the others failed; else the first failure counts (by rank, where several
    are known at once); else all must have ended well.

    Parameters
    ----------
    exits
        Exit code of each copy, ``None`` for one that runs; minus the signal's number for one that died by a signal.
    """
    ended = [code for code in exits if code is not None]
    died = [code for code in ended if code < 0]
    failed = [code for code in ended if code > 0]
    if died or failed:
        return (died or failed)[0]
    return 0 if len(ended) == len(exits) else None


class Copies:
    """The copies of one launch, running; to the controller they are one program.

    Parameters
    ----------
    command
        Command line, the same on every node.
    launch
        Number of the launch.
    nodes
        Where to run, the primary first.
    port
        Of the primary, for the copies' own use.
    news
        Announced by the nodes when a copy has ended.
    printer
        Gets what they write.
    """

    def __init__(
        self,
        command: Sequence[str],
        launch: int,
        nodes: Sequence[Node],
        port: int,
        news: threading.Condition,
        printer: Printer,
    ) -> None:
        self._name = f"program-{launch}"
        self._nodes = nodes
        self._news = news
        for rank, node in enumerate(nodes):
            ranks = rank_variables(rank, len(nodes), nodes[0].record.address, port)
            node.start_task(
                self._name,
                command,
                {LAUNCH: str(launch), UNBUFFERED: os.environ.get(UNBUFFERED, "1"), **ranks},
                directory=str(Path.cwd()),
                output=_Relay(node, printer).take,
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code of all of them, as soon as there is one; the others may still run then."""
        return verdict_on(self._exits())

    @property
    def ended(self) -> bool:
        """Whether none runs any more; a copy on a lost node counts as ended."""
        return all(code is not None or node.gone for node, code in zip(self._nodes, self._exits(), strict=True))

    def ask_to_stop(self) -> None:
        """Tell all copies to save what they must and end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all copies at once; what they leave is for the sweep."""
        self._signal(signal.SIGKILL)

    def wait(self, deadline_s: float) -> bool:
        """Wait for the end of all copies; return whether it came."""
        with self._news:
            return self._news.wait_for(lambda: self.ended, deadline_s)

    def _signal(self, signum: int) -> None:
        for node in self._nodes:
            node.signal_task(self._name, signum)

    def _exits(self) -> list[int | None]:
        return [node.task_exits.get(self._name) for node in self._nodes]


class _Relay:
    """Hands one copy's output to the printer, line by line."""

    def __init__(self, node: Node, printer: Printer) -> None:
        self._node = node
        self._printer = printer
        prefix = f"[{node.record.hostname}] ".encode()
        self._lines = {stream: Lines(prefix) for stream in ("stdout", "stderr")}

    def take(self, stream: str, data: bytes) -> None:
        lines = self._lines[stream]
        self._printer.add(stream, lines.take(data) if data else lines.end(), partial(self._node.printed, len(data)))
