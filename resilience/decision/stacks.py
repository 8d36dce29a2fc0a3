"""Which rank of a program that hangs is the odd one, by the stacks of all of them. Pure.

Ranks wait for each other, so most of them stand in the same collective or wait at a socket, and the one that they wait
for stands elsewhere: stopped, in a read that does not return, in a loop, in a collective that the others never reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from laggard.resilience.decision.hang import MIN_RANK_S, RankLife, Suspicion

Doing = Literal[
    "waits for others", "waits at a socket", "works", "stuck", "disk sleep", "stopped", "unreadable", "killed"
]

MAX_GROUPS = 4  # of ranks that wait at the same place: more are no sentence
_KERNEL: Mapping[str, Doing] = {"T": "stopped", "D": "disk sleep"}
HELD = frozenset(_KERNEL.values())
# Most certain first: who waits at a socket may wait for a service as well.
_WAITS: Sequence[frozenset[Doing]] = (
    frozenset({"waits for others"}),
    frozenset({"waits for others", "waits at a socket"}),
)
# Functions in which a rank waits for other ranks, or for a device that does.
_COLLECTIVE = re.compile(r"[/\\](torch[/\\]distributed|horovod|deepspeed[/\\]comm|mpi4py)[/\\]")
# The innermost of Python in a program that waits for Ray's workers, and in a worker without work.
_IN_RAY = re.compile(r"[/\\]ray[/\\]_private[/\\]worker\.py$")
_WAITING = {"backward", "_engine_run_backward", "synchronize", "item", "tolist", "block_until_ready"}
# Functions of the kernel in which a process waits at a socket, or at any of several files.
_SOCKET_WAIT = re.compile(
    r"^(wait_woken|unix_|inet_|sk_|sock_|tcp_|_*skb_wait|(do_|ep_)?(sys_)?e?poll|do_epoll|(core_sys|do)_select)"
)
_SOCKET_FILE = re.compile(r"[/\\](socket|ssl|selectors|asyncio[/\\]\w+|multiprocessing[/\\]connection)\.py$")
# Where a rank waits for a child of its own, at a pipe or a socket too.
_CHILD_FILE = re.compile(
    r"[/\\](subprocess|multiprocessing[/\\](queues|pool|process|popen_\w+|managers)|concurrent[/\\]futures[/\\]\w+)\.py$"
)
_POOL_FILE = re.compile(r"[/\\]multiprocessing[/\\]pool\.py$")
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
    # (Z: a child has ended, and its parent has not asked how)
    waits_in: str = ""  # the function of the kernel that it waits in; empty if unknown
    active: bool = False  # whether it used a processor or moved bytes while it was looked at
    # The frames of each thread, innermost first, the main thread first; empty if they could not be read
    threads: tuple[tuple[Frame, ...], ...] = ()
    trouble: str = ""  # why they could not be read
    # Where its child processes stand, of those that it has started itself and those that they have started
    children: tuple[RankStack, ...] = ()
    signum: int = 0  # the signal that has ended it, of a child

    @property
    def doing(self) -> Doing:
        """What it does."""
        if self.signum:
            return "killed"
        if self.state in _KERNEL and not (self.state == "D" and self.active):
            return _KERNEL[self.state]
        if self._is_in(_COLLECTIVE) or any(frame.function in _WAITING for frame in self._called()):
            return "waits for others"
        if self._main and _IN_RAY.search(self._main[0].file):
            return "waits for others"
        at_socket = self._is_in(_SOCKET_FILE) or _SOCKET_WAIT.search(self.waits_in)
        if self.state == "S" and not self.active and at_socket and not self._is_in(_CHILD_FILE):
            return "waits at a socket"
        if not self.threads:
            return "unreadable"
        return "works" if self.active else "stuck"

    @property
    def is_held(self) -> bool:
        """Whether a signal has stopped it or the kernel holds it, or a child that it waits for."""
        return self.doing in HELD or (self.doing == "stuck" and any(child.doing in HELD for child in self.children))

    @property
    def awaited_child(self) -> RankStack | None:
        """The child that it seems to wait for: one that is held, was killed, or else is in the user's code."""
        held = [child for child in self.children if child.doing in HELD]
        killed = [child for child in self.children if child.signum]
        in_users = [child for child in self.children if any(frame.is_users for frame in child._main)]
        return next(iter((*held, *killed, *in_users)), None)

    @property
    def waits_for_idle_pool(self) -> bool:
        """Whether it waits for a result that no process of its pool is at work on: one has ended with the task."""
        if not self._is_in(_POOL_FILE):
            return False
        tasks = [task for child in self.children if (task := _task_in_pool(child._main)) is not None]
        return bool(tasks) and all(task.endswith("get") for task in tasks)

    @property
    def is_ending(self) -> bool:
        """Whether its program is over: only what Python does before a process ends is still at work."""
        return bool(self.threads) and not any(frame.function == "<module>" for frame in self._main)

    @property
    def place(self) -> str:
        """Where it stands: ``all_reduce (train.py:88)``; empty if its stack is not known."""
        users = next((frame for frame in self._main if frame.is_users), None)
        if users is None:
            return f"{self._main[0].function} ({self._main[0].place})" if self._main else ""
        public = (frame.function for frame in reversed(self._called()) if not _WRAPPER.search(frame.function))
        return f"{next(public, users.function)} ({users.place})"

    @property
    def _main(self) -> Sequence[Frame]:
        return self.threads[0] if self.threads else ()

    def _is_in(self, file: re.Pattern[str]) -> bool:
        return any(file.search(frame.file) for frame in self._called())

    def _called(self) -> Sequence[Frame]:
        """Return the frames of the main thread that the innermost of the user's own has called."""
        return self._main[: next((at for at, frame in enumerate(self._main) if frame.is_users), 0)]


def _task_in_pool(frames: Sequence[Frame]) -> str | None:
    """Return the function that a worker's code of the pool has called, empty if none; None: it is no worker."""
    at = next((at for at, frame in enumerate(frames) if _POOL_FILE.search(frame.file)), None)
    return None if at is None else frames[at - 1].function if at else ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that stand at the same place and do the same, or a child process."""

    doing: Doing  # what they do, and where; `place` is empty if it is not known
    place: str
    n_ranks: int = 1  # how many they are
    host: str = ""  # the first of them; `rank` is None for a program without ranks
    rank: int | None = None
    child: Standing | None = None  # that a single rank seems to wait for
    waits_for_idle_pool: bool = False  # it waits for a pool none of whose workers has anything to do
    pid: int = 0  # of a child, with the signal that has ended it
    signum: int = 0


@dataclass(frozen=True, slots=True)
class Standstill:
    """Where the ranks stand, the odd ones last; ``n_more`` places are left out."""

    standings: tuple[Standing, ...]
    n_more: int = 0


def _standing(ranks: Sequence[RankStack]) -> Standing:
    first = ranks[0]
    group = Standing(first.doing, first.place, len(ranks), first.host, first.rank)
    if len(ranks) > 1 or first.doing in _WAITS[1]:
        return group
    child = first.awaited_child
    awaited = Standing(child.doing, child.place, pid=child.pid, signum=child.signum) if child else None
    return replace(group, child=awaited, waits_for_idle_pool=first.waits_for_idle_pool)


def with_unread(stacks: Sequence[RankStack], lives: Iterable[RankLife]) -> tuple[RankStack, ...]:
    """Return the stacks, with the ranks that were seen before and have given none."""
    read = {(stack.host, stack.rank) for stack in stacks}
    unread = sorted({(life.host, life.rank) for life in lives} - read, key=str)
    return *stacks, *(RankStack(host, rank, 0, "", trouble="its node has not said") for host, rank in unread)


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
    # at the place where most are; at sockets the place says nothing, since each end of a connection has its own.
    held = tuple(stack for stack in stacks if stack.is_held)
    if 0 < len(held) < len(stacks):
        return held
    read = [stack for stack in stacks if stack.doing != "unreadable"]
    for waits in _WAITS:
        free = tuple(stack for stack in read if stack.doing not in waits)
        if 0 < len(free) < len(read):
            return free
    # Compiled code that is busy, or waits for something else than a peer
    away = tuple(stack for stack in stacks if stack.doing == "unreadable" and (stack.active or stack.waits_in))
    others = [stack for stack in stacks if stack not in away]
    if away and others and all(stack.doing in _WAITS[1] and not stack.active for stack in others):
        return away  # that the others sleep says that it does not spin to wait
    largest = groups_of(read)[0] if read else ()
    if 2 * len(largest) <= len(read) or largest[0].doing == "waits at a socket":
        return ()
    return tuple(stack for stack in read if stack not in largest)


def standstill_of(stacks: Sequence[RankStack]) -> Standstill | None:
    """Return where the ranks stand, the odd ones last; None without stacks."""
    odd = odd_ones(stacks)
    found = list(map(_standing, sorted(groups_of(stacks), key=lambda group: group[0] in odd)))
    if len(found) <= MAX_GROUPS:
        return Standstill(tuple(found)) if found else None
    # The first group is the largest of the others, the last ones are the odd ones.
    return Standstill((found[0], *found[-MAX_GROUPS + 1 :]), len(found) - MAX_GROUPS)


def is_hang(suspicion: Suspicion, stacks: Sequence[RankStack], lives: Iterable[RankLife] = ()) -> bool:
    """Return whether the program hangs, given why it is suspected, where its ranks stand and how they look."""
    # A rank that works, while others wait for it, may be about something that takes long, such as an evaluation. That
    # is a hang only after `MIN_RANK_S`, and if it is not just few that wait.
    # A rank that waits for a device may well wait for its own work, if the device is seen to do any.
    on_device = {(life.host, life.rank) for life in lives if life.by_device and life.is_seen}
    working = sum(
        stack.doing == "works"
        or (stack.doing == "unreadable" and stack.active)
        or (stack.doing == "waits for others" and (stack.host, stack.rank) in on_device)
        for stack in stacks
    )
    if suspicion.certain or not working:
        return True
    stuck = any(stack.doing == "stuck" or stack.doing in HELD for stack in stacks)
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
