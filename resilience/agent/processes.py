"""Ending processes so that none is left, found by descent or by a mark; a process can shake off neither.

By descent: a process that has called :func:`adopt_orphans` becomes the parent of every descendant whose own parent
ends, however often it forked and whatever session it created, so its children are all that it ever started.

By a mark: ``python -m laggard.resilience.agent.processes MARK`` ends what a killed agent has left on this node. The
mark is in the environment of the agent, and so of everything that it started. Stale folders of this user's jobs are
removed as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from laggard.resilience.agent.awake import Deadline
from laggard.resilience.agent.forked_process import ForkedProcess
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.folders import remove_stale_folders, runtime_root

AGENT_MARK = "LAGGARD_AGENT"
FORCED_STOP_S = 5.0
_POLL_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_PYTHON = re.compile(r"python[\d.]*$")

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the new parent of orphaned descendants (``PR_SET_CHILD_SUBREAPER``, Linux)."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return dict(process.environ())
    return {}


def state_of(pid: int) -> str:
    """Return what a process is doing, by the kernel: ``disk-sleep in nfs_wait_on_request``; empty if it has ended."""
    try:
        state = psutil.Process(pid).status()
        waits_in = Path(f"/proc/{pid}/wchan").read_text()
    except (psutil.Error, OSError):
        return ""
    return f"{state} in {waits_in}" if waits_in.strip("0") else str(state)


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _PYTHON.match(Path(f"/proc/{pid}/exe").readlink().name) is not None
    return False


def behind_wrappers(
    pid: int, children: Callable[[int], Sequence[int]] = children_of, is_the_program: Callable[[int], bool] = _is_python
) -> int:
    """Return the Python that a container's program or a shell only waits for; if there is none, the process itself."""
    inner = pid
    while not is_the_program(inner):
        if len(below := children(inner)) != 1:
            return pid
        (inner,) = below
    return inner


def _handles(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal, as a shell with a trap has."""
    with contextlib.suppress(OSError):
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (signum - 1) & 1)
    return False


def ask_to_end(process: subprocess.Popen[bytes] | ForkedProcess, signum: int) -> None:
    """Send a signal to a program; a wrapper without a handler would die of it, and ends by itself after the program.

    What is stopped handles no signal, so it is killed; else all others would wait for it as long as they may save.
    """
    _kill_stopped(process.pid)
    inner = behind_wrappers(process.pid, is_the_program=lambda pid: _is_python(pid) or _handles(pid, signum))
    if signum == signal.SIGINT:
        _interrupt(inner)
    elif inner == process.pid:
        process.send_signal(signum)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner, signum)


def _kill_stopped(pid: int) -> None:
    """Kill those of a process and of all below it that a signal has stopped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.status() == psutil.STATUS_STOPPED:
                    each.kill()


def _interrupt(pid: int) -> None:
    """Send SIGINT to a process and to those below it in its process group, as a terminal does at Ctrl-C."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        group = os.getpgid(pid)
        for each in (*process.children(recursive=True), process):  # a launcher last, for it may end the others
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(each.pid) == group:
                    each.send_signal(signal.SIGINT)


def reap_orphans(own: Iterable[int]) -> None:
    """Reap adopted children that have ended; ``own`` are the processes that this one started and reaps itself."""
    started = set(own)
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in started and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def end_descendants(chosen: Callable[[psutil.Process], bool] = lambda _: True, *, deadline_s: float) -> int:
    """Kill every chosen descendant of this process and return how many there were."""
    # Repeats until none is found, since a process may fork meanwhile. Reaps none of them: whoever started a process
    # does that.
    deadline = Deadline(deadline_s)
    ended: set[int] = set()
    while True:
        found = [process for process in _living_descendants() if chosen(process)]
        if not found:
            return len(ended)
        if deadline.left_s() <= 0:
            pids = [process.pid for process in found]
            raise ProcessesStillRunningError(pids, deadline_s, [state_of(pid) for pid in pids])
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            ended.add(process.pid)
        time.sleep(_POLL_S)


def _living_descendants() -> list[psutil.Process]:
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def end_marked(variable: str, mark: str, deadline_s: float) -> bool:
    """Kill every process that has a mark in a variable; return whether none was left at the deadline."""
    deadline = Deadline(deadline_s)
    ending: set[psutil.Process] = set()
    while True:
        marked = {process for process in psutil.process_iter() if environment_of(process).get(variable) == mark}
        # a process that is ending loses its environment before it releases its files and locks
        ending = {process for process in ending | marked if not _has_ended(process)}
        if not ending:
            return True
        if deadline.left_s() <= 0:
            return False
        for process in marked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_POLL_S)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def main() -> int:
    """End the processes with the mark given as argument; return 0 if none is left."""
    ended = end_marked(AGENT_MARK, sys.argv[1], FORCED_STOP_S)
    remove_stale_folders(runtime_root())
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
