"""About the warm process of a node, and what it and the agent say to each other.

It runs in the program's Python, which may not have this package: there the same lines are written by hand
(:mod:`laggard.resilience.agent.python_start.laggard_warm`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.resilience.wire.message import Command, Report


@dataclass(frozen=True, slots=True)
class KeepWarm(Command):
    """Keep a process that tasks are forked from."""

    command: tuple[str, ...]  # command line of the program, which begins with a Python
    environment: Mapping[str, str]  # the variables that all tasks have in common, beside the node's own
    varying: tuple[str, ...]  # names of the variables that each launch or task has its own of
    directory: str  # the tasks' working directory
    modules: tuple[str, ...]  # modules to load if they are installed libraries
    writes_stacks: bool = False


@dataclass(frozen=True, slots=True)
class ForkAhead(Command):
    """Fork processes for tasks that are about to start, if there is a warm process."""

    n_tasks: int


@dataclass(frozen=True, slots=True)
class SayImports(Command):
    """Say what the first rank has imported by now, since it is at work."""


@dataclass(frozen=True, slots=True)
class Imported(Report):
    """What the first rank has imported before it was at work."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut(Report):
    """A module that the warm process does without; the agent passes it on."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class WarmReady(Report):
    """The warm process has loaded its modules; the agent passes it on."""

    pid: int
    kib: int  # its share of memory
    n_modules: int


@dataclass(frozen=True, slots=True)
class Load:
    """To the warm process: what it is for."""

    agent_pid: int
    modules: tuple[str, ...]
    varying: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forked:
    """From a process that waits to be a rank."""

    pid: int


@dataclass(frozen=True, slots=True)
class Run:
    """To it: what to run as; its standard output and error come along."""

    environment: Mapping[str, str]
    directory: str
    imports: str | None  # where it records what it imports


@dataclass(frozen=True, slots=True)
class Runs:
    """From it: it runs."""


@dataclass(frozen=True, slots=True)
class Refused:
    """From it, or from the warm process in its place: why it does not run."""

    why: str
