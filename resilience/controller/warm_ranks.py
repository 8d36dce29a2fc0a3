"""Warm processes: on each node one that has loaded what the program loads, from which the next launch is forked.

The first rank of each launch records what it imports. Once it is at work, every node that may run the next launch keeps
a process that has loaded the same (:mod:`laggard.resilience.agent.warm`). The next launch's ranks are forked from it
while the old ones are still saving.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.rank_variables import launch_variables, shared_variables
from laggard.resilience.nodes.ranks import Ranks
from laggard.resilience.record.account import Account
from laggard.resilience.text import abbreviated
from laggard.resilience.wire.warm import ForkAhead, KeepWarm, WarmReady

MAX_REASONS = 3
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of Python's that take no argument, and with which our code runs at its start.
_HARMLESS = re.compile(r"-[uOBsq]+")


def can_be_warm(command: Sequence[str]) -> bool:
    """Return whether a command line runs a Python that runs our code at its start, and then a program."""
    program = next(itertools.dropwhile(_HARMLESS.fullmatch, command[1:]), "")
    is_program = program in ("-m", "-c") or (program.endswith(".py") and not program.startswith("-"))
    return is_program and _PYTHON.fullmatch(Path(command[0]).name) is not None


class WarmRanks:
    """The warm processes of one job."""

    def __init__(
        self,
        command: Sequence[str],
        cluster: Cluster,
        account: Account,
        *,
        is_wanted: bool,
        per_device: bool,
        writes_stacks: bool,
    ) -> None:
        # Whether ranks may be forked from warm processes at all
        self.possible = is_wanted and can_be_warm(command)
        self._command = command  # command line of the program
        self._per_device = per_device  # whether each device has a rank, instead of each node
        self._cluster = cluster  # the job's agents
        self._account = account  # tells the user
        self._writes_stacks = writes_stacks  # whether ranks are started so that they can write their stacks
        self._modules: tuple[str, ...] = ()
        self._is_kept = False
        self._roster: Roster | None = None
        self._told: set[str] = set()
        self._untold: Ranks | None = None  # ranks of whose start the user has not been told

    def began(self, roster: Roster, ranks: Ranks, launch: int) -> None:
        """Take note of a launch that has begun, and keep warm processes on its nodes."""
        if not self.possible:
            return
        self._untold = ranks if launch > 0 else None
        self.moved(roster)

    def moved(self, roster: Roster) -> None:
        """Keep warm processes on the nodes that are in use now, and in reserve."""
        self._roster = roster
        if self._is_kept:
            self._keep()

    def look(self) -> None:
        """See what the program has imported and what became of the warm processes, and tell the user."""
        if not self.possible or self._roster is None:
            return
        first = self._cluster.nodes.get(self._roster.active[0])
        if first is not None and self._has_more(first):
            self._keep()
        self._tell_news()
        self._tell_starts()

    def _has_more(self, first: Node) -> bool:
        """Return whether it is known for the first time what is to be loaded, or there is more of it."""
        # The first rank, on the first node in use, says what it has loaded. That it does also says that the program's
        # Python runs our code at its start: another one would run the program.
        new = [name for name in first.warm.imports if name not in self._modules]
        if not any(map(_is_no_stdlib_module, new)):
            return False
        self._modules = (*self._modules, *new)
        return True

    def fork_ahead(self, hosts: Iterable[str]) -> None:
        """Have the ranks of the next launch forked, as far as their nodes are known."""
        for node in (self._cluster.nodes[host] for host in hosts if self.possible and host in self._cluster.nodes):
            node.agent.send(ForkAhead(len(node.record.devices) if self._per_device else 1))

    def _keep(self) -> None:
        if self._roster is None:
            return
        self._is_kept = True
        for host in (*self._roster.active, *self._roster.reserve):
            if (node := self._cluster.nodes.get(host)) is not None:
                [ranks] = launch_variables([node.record], 0, 0, os.environ, per_device=self._per_device, run="")
                shared, varying = shared_variables(ranks[0])
                directory, command = str(Path.cwd()), tuple(self._command)
                node.warm.keep(KeepWarm(command, shared, tuple(varying), directory, self._modules, self._writes_stacks))

    def _tell_news(self) -> None:
        for host, node in self._cluster.nodes.items():
            for news in node.warm.take_news():
                if isinstance(news, WarmReady):
                    self._tell_once("ready", _ready_text(host, news))
                else:
                    self._tell_once(news.name, f"{news.name} is left out of warm processes: it {news.why}")

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._account.tell("warm", text)

    def _tell_starts(self) -> None:
        if self._untold is None or (starts := self._untold.starts()) is None:
            return
        self._untold = None
        if self._is_kept:
            self._account.tell("warm", _starts_text(starts))


def _ready_text(host: str, ready: WarmReady) -> str:
    return f"{host} keeps a process ready that has loaded {ready.n_modules} modules ({ready.kib / 1024:.0f} MiB)"


def _starts_text(starts: Sequence[tuple[str, str]]) -> str:
    n_warm = sum(not why for _, why in starts)
    text = f"{n_warm} of {len(starts)} ranks were forked from a warm process"
    hosts: dict[str, list[str]] = {}
    for host, why in starts:
        if why and host not in hosts.setdefault(why, []):
            hosts[why].append(host)
    reasons = [f"{abbreviated(where)}: {why}" for why, where in list(hosts.items())[:MAX_REASONS]]
    return "; ".join([text, *reasons])


def _is_no_stdlib_module(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names
