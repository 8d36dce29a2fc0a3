"""The ranks of a launch on this node: which processes they are, and what the kernel says of them.

Read from ``/proc`` alone, and mostly from files that a process which is held in the kernel cannot block.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, RANK_VARIABLES
from laggard.resilience.agent.hook import WARM
from laggard.resilience.agent.processes import behind_wrappers, environment_of
from laggard.resilience.decision.hang import Counters

# A process may still become another program.
SETTLED_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EXIT_CODE = 50  # where /proc/PID/stat has it, from the name on
_OWN_MODULE = "laggard."
# Ray's workers without a task, and our collectors; the kernel keeps 15 characters of a name.
_OWN_WORKERS = ("ray::IDLE", "ray::NodeCollec")


@dataclass(frozen=True, slots=True)
class _Member:
    """A process of the launch."""

    rank: int | None
    own: bool  # one of laggard's helpers


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, or one process that the launch has begun with, and its descendants."""

    rank: int | None  # its number; None for a program without ranks
    pid: int  # its process id
    descendants: tuple[int, ...] = ()  # their process ids

    def state(self) -> str:
        """Return the kernel's letter for the main thread; empty if it has ended."""
        fields = _stat(self.pid)
        return fields[1] if fields else ""

    def waits_in(self) -> str:
        """Return the function of the kernel that the main thread waits in; empty if it is not known."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/wchan").read_text().strip("0")
        return ""

    def killed(self) -> list[tuple[int, int]]:
        """Return the children that a signal has ended and that nobody has waited for, and the signals."""
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                fields = _stat(child.pid)
                if fields and fields[1] == "Z" and (signum := int(fields[_EXIT_CODE]) & 0x7F):
                    found.append((child.pid, signum))
        return found

    def counters(self) -> Counters:
        """Return what the kernel counts for it."""
        pids = (self.pid, *self.descendants)
        return Counters(
            sum(map(_cpu_s, pids)),
            _bytes_moved(Path(f"/proc/{self.pid}/task/{self.pid}/io")),
            sum(_bytes_moved(Path(f"/proc/{pid}/io")) for pid in self.descendants),
            _wake_ups(self.pid) if self.rank is None else 0,
        )


class RankFinder:
    """Finds the ranks of one launch on one node, among all processes of the machine."""

    def __init__(self, launch: int, endpoint_file: str) -> None:
        self._launch = str(launch)  # number of the launch
        # The node's file of the job's state server, which no other node and no other job on the machine has
        self._endpoint_file = endpoint_file
        self._known: dict[psutil.Process, _Member | None] = {}

    def find(self) -> list[Rank]:
        """Return the ranks; without any, the processes that the launch has begun with."""
        known: dict[psutil.Process, _Member | None] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process in self._known:
                    known[process] = self._known[process]
                elif WARM not in (environment := environment_of(process)):  # else it may become a rank, at any time
                    known[process] = self._look_at(process, environment)
        self._known = {process: member for process, member in known.items() if _is_settled(process)}
        members = {process.pid: member for process, member in known.items() if member is not None}
        parents = {process.pid: _parent(process.pid) for process, member in known.items() if member is not None}
        return list(_ranks(members, parents))

    def _look_at(self, process: psutil.Process, environment: Mapping[str, str]) -> _Member | None:
        if environment.get(LAUNCH) != self._launch or environment.get(ENDPOINT_FILE) != self._endpoint_file:
            return None
        numbers = (environment.get(name, "") for name in RANK_VARIABLES)
        rank = next((int(number) for number in numbers if number.isdigit()), None)
        words = itertools.pairwise(process.cmdline())
        return _Member(rank, any(option == "-m" and module.startswith(_OWN_MODULE) for option, module in words))


def _ranks(members: dict[int, _Member], parents: dict[int, int]) -> Iterator[Rank]:
    numbered = any(member.rank is not None for member in members.values())
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    for pid, member in members.items():
        above = members.get(parents[pid])
        begins = member.rank is not None and (above is None or above.rank != member.rank) if numbered else above is None
        if begins and not member.own and not _is_idle_worker(pid):
            inner = behind_wrappers(pid, lambda above: children.get(above, ()))
            yield Rank(member.rank, inner, tuple(_descendants(inner, children)))


def _is_idle_worker(pid: int) -> bool:
    fields = _stat(pid)
    return not fields or fields[0].startswith(_OWN_WORKERS)


def _descendants(pid: int, children: dict[int, list[int]]) -> Iterable[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _descendants(child, children)


def _is_settled(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.create_time() < time.time() - SETTLED_S)
    return False


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[2]) if fields else 0


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    # user and system time, and those of the children that have ended
    return sum(map(int, fields[12:16])) / _TICKS_PER_S if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the name on; empty if it has ended."""
    with contextlib.suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return [name, *rest.split()]
    return []


def _wake_ups(pid: int) -> int:
    """Return how often the main thread has waited and gone on."""
    with contextlib.suppress(OSError):
        counts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(counts["voluntary_ctxt_switches"])
    return 0


def _bytes_moved(file: Path) -> int:
    with contextlib.suppress(OSError):
        counts = dict(line.split(": ") for line in file.read_text().splitlines())
        # The first two count a call when it returns, the others the pages of one that takes long.
        return sum(int(counts[name]) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    return 0
