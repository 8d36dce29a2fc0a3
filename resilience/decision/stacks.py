"""Which rank of a program that hangs is the odd one, by the stacks of all of them. Pure.

Ranks wait for each other, so most of them stand in the same collective, and the one that they wait for stands
elsewhere: stopped, in a read that does not return, in a loop, or in a collective that the others never reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from laggard.resilience.decision.hang import ACTIVE_SHARE, MIN_RANK_S, Suspicion

Doing = Literal["waits for others", "works", "stuck", "disk sleep", "stopped"]

MAX_GROUPS = 4  # of ranks that wait at the same place: more are no sentence
_KERNEL: Mapping[str, Doing] = {"T": "stopped", "D": "disk sleep"}
HELD = frozenset(_KERNEL.values())
# Functions in which a rank waits for other ranks, or for a device that does.
_COLLECTIVE = re.compile(r"[/\\](torch[/\\]distributed|horovod|deepspeed[/\\]comm|mpi4py)[/\\]")
_WAITING = {"backward", "_engine_run_backward", "synchronize", "item", "tolist", "block_until_ready"}
_LIBRARY = re.compile(r"^<|[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python3(\.\d+)?[/\\]")
_WRAPPER = re.compile(r"^_|^<|wrap|decorate|^inner$")
# Where a process of the module multiprocessing begins.
_BEGINS_FORK = re.compile(r"[/\\]multiprocessing[/\\]process\.py$")
_THREAD = re.compile(r"^(Current thread|Thread) ")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the function, and the line that it is at."""

    function: str
    file: str
    line: int

    @property
    def is_users(self) -> bool:
        """Whether it is in the user's code, neither in a package nor in Python itself."""
        return not _LIBRARY.search(self.file)

    @property
    def place(self) -> str:
        """File name and line."""
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where a rank stands."""

    host: str  # its node
    rank: int | None  # its number; None for a program without ranks
    pid: int  # its process id on the node
    state: str  # the kernel's letter for its main thread: R running, S sleeping, D waiting in the kernel, T stopped
    waits_in: str = ""  # the function of the kernel that it waits in; empty if unknown
    cpu_share: float = 0.0  # processor time that it used while it was looked at, in processors
    # The frames of each thread, innermost first, the main thread first; empty if they could not be read
    threads: tuple[tuple[Frame, ...], ...] = ()
    trouble: str = ""  # why they could not be read
    # Where its child processes stand, of those that it has started itself and those that they have started
    children: tuple[RankStack, ...] = ()

    @property
    def doing(self) -> Doing:
        """What it does."""
        if self.state in _KERNEL:
            return _KERNEL[self.state]
        called = self._called()
        if any(frame.function in _WAITING or _COLLECTIVE.search(frame.file) for frame in called):
            return "waits for others"
        return "works" if self.cpu_share >= ACTIVE_SHARE else "stuck"

    @property
    def is_held(self) -> bool:
        """Whether a signal has stopped it or the kernel holds it, or a child that it waits for."""
        return self._is_held_itself or (self.doing == "stuck" and any(c._is_held_itself for c in self.children))

    @property
    def _is_held_itself(self) -> bool:
        return self.state in _KERNEL

    @property
    def awaited_child(self) -> RankStack | None:
        """The child that it seems to wait for: one that is held, or else one that is in the user's code."""
        in_users = (child for child in self.children if child.threads and any(f.is_users for f in child.threads[0]))
        return next((child for child in self.children if child._is_held_itself), next(in_users, None))

    @property
    def is_ending(self) -> bool:
        """Whether its program is over: only what Python does before a process ends is still at work."""
        return bool(self.threads) and not any(frame.function == "<module>" for frame in self.threads[0])

    @property
    def place(self) -> str:
        """Where it stands: ``all_reduce (train.py:88)``; empty if its stack is not known."""
        frames = self.threads[0] if self.threads else ()
        users = next((frame for frame in frames if frame.is_users), None)
        if users is None:
            return f"{frames[0].function} ({frames[0].place})" if frames else ""
        public = (frame.function for frame in reversed(self._called()) if not _WRAPPER.search(frame.function))
        return f"{next(public, users.function)} ({users.place})"

    def _called(self) -> Sequence[Frame]:
        """Return the frames of the main thread that the innermost of the user's own has called."""
        frames = self.threads[0] if self.threads else ()
        return frames[: next((at for at, frame in enumerate(frames) if frame.is_users), 0)]


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that stand at the same place and do the same."""

    doing: Doing  # what they do, and where; `place` is empty if it is not known
    place: str
    n_ranks: int = 1  # how many they are
    host: str = ""  # the first of them; `rank` is None for a program without ranks
    rank: int | None = None
    # Where the child stands that a single rank seems to wait for, and its process id; None if there is none
    child: tuple[int, Doing, str] | None = None


@dataclass(frozen=True, slots=True)
class Standstill:
    """Where the ranks stand, the odd ones last; ``n_more`` places are left out."""

    standings: tuple[Standing, ...]
    n_more: int = 0


def _standing(ranks: Sequence[RankStack]) -> Standing:
    first = ranks[0]
    child = first.awaited_child if len(ranks) == 1 and first.doing != "waits for others" else None
    of_child = None if child is None else (child.pid, child.doing, child.place)
    return Standing(first.doing, first.place, len(ranks), first.host, first.rank, of_child)


def groups_of(stacks: Iterable[RankStack]) -> list[tuple[RankStack, ...]]:
    """Return the ranks grouped by what they do and where they stand, the largest group first."""
    found: dict[tuple[Doing, str], list[RankStack]] = {}
    for stack in stacks:
        found.setdefault((stack.doing, stack.place), []).append(stack)
    return sorted(map(tuple, found.values()), key=lambda group: -len(group))


def odd_ones(stacks: Sequence[RankStack]) -> tuple[RankStack, ...]:
    """Return the ranks that the others wait for; empty if that cannot be told."""
    # If some ranks wait for others and some do not, it is those that do not; of these, those that are held, themselves
    # or with a child that they wait for, if there are any. If all do the same kind of thing, it is those that are not
    # at the place where most are.
    held = tuple(stack for stack in stacks if stack.is_held)
    if 0 < len(held) < len(stacks):
        return held
    free = tuple(stack for stack in stacks if stack.doing != "waits for others")
    if 0 < len(free) < len(stacks):
        return free
    largest = groups_of(stacks)[0] if stacks else ()
    return tuple(stack for stack in stacks if stack not in largest) if 2 * len(largest) > len(stacks) else ()


def standstill_of(stacks: Sequence[RankStack]) -> Standstill | None:
    """Return where the ranks stand, the odd ones last; None without stacks."""
    odd = odd_ones(stacks)
    found = list(map(_standing, sorted(groups_of(stacks), key=lambda group: group[0] in odd)))
    if len(found) <= MAX_GROUPS:
        return Standstill(tuple(found)) if found else None
    # The first group is the largest of the others, the last ones are the odd ones.
    return Standstill((found[0], *found[-MAX_GROUPS + 1 :]), len(found) - MAX_GROUPS)


def is_hang(suspicion: Suspicion, stacks: Sequence[RankStack]) -> bool:
    """Return whether the program hangs, given why it is suspected and where its ranks stand."""
    # A rank that works, while others wait for it, may be about something that takes long, such as an evaluation. That
    # is a hang only after `MIN_RANK_S`, and if it is not just few that wait.
    working = sum(stack.doing == "works" for stack in stacks)
    if suspicion.certain or not working:
        return True
    stuck = any(stack.doing not in {"works", "waits for others"} for stack in stacks)
    return suspicion.silent_s > MIN_RANK_S and (stuck or 2 * working < len(stacks))


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames of a child without those of its parent, with which a fork begins."""
    own = (at for at, frame in enumerate(frames) if _BEGINS_FORK.search(frame.file) and "_bootstrap" in frame.function)
    return tuple(frames[: next(own, len(frames)) + 1])


def parse_faulthandler(text: str) -> tuple[tuple[Frame, ...], ...]:
    """Return the threads in what Python's ``faulthandler`` has written, the current one first."""
    threads: list[list[Frame]] = []
    current = 0
    for line in text.splitlines():
        if match := _THREAD.match(line):
            current = len(threads) if match[1] == "Current thread" else current
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            threads[-1].append(Frame(match["function"], match["file"], int(match["line"])))
    return tuple(
        tuple(frames) for frames in threads[current : current + 1] + threads[:current] + threads[current + 1 :]
    )
