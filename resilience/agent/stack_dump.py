"""``python -m laggard.resilience.agent.stack_dump LAUNCH``: the stacks of this node's ranks, as one line.

The agent starts it when the program hangs, before anything is ended. Each rank is read from outside by py-spy, which
does not stop it. Where the system forbids that, the rank is asked by a signal to write its stacks itself
(:mod:`.python_start`), which it cannot do while it is stopped or held in the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from laggard.kvstore.client.environment import ENDPOINT_FILE, NODE
from laggard.resilience.agent.ranks import Rank, RankFinder
from laggard.resilience.decision.hang import Counters, LifeWatch
from laggard.resilience.decision.stacks import Frame, RankStack, own_frames, parse_faulthandler
from laggard.resilience.wire import encode
from laggard.resilience.wire.checks import Stacks

STACK_SIGNAL = signal.SIGRTMIN + 9
MAX_RANKS = 64
MAX_CHILDREN = 16  # of a rank that waits for none of the others
MAX_FRAMES = 48  # of the main thread
MAX_OTHER_THREADS = 12
MAX_OTHER_FRAMES = 12
# Short enough for several rounds of MAX_WORKERS within the agent's deadline.
DUMP_DEADLINE_S = 3.0
SIGNAL_DEADLINE_S = 1.0
POLL_S = 0.02
LOOK_S = 1.0
MAX_WORKERS = 8

Threads = tuple[tuple[Frame, ...], ...]


def main(launch: int) -> None:
    """Print the stacks of this node's ranks of a launch."""
    ranks = RankFinder(launch, os.environ[ENDPOINT_FILE]).find()[:MAX_RANKS]
    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        stacks = list(pool.map(_stack, ranks))
        for number, (rank, stack) in enumerate(zip(ranks, stacks, strict=True)):
            if stack.doing == "stuck":  # it may wait for a child
                children = pool.map(_child, rank.descendants[:MAX_CHILDREN])
                killed = (RankStack(stack.host, None, pid, "Z", signum=signum) for pid, signum in rank.killed())
                stacks[number] = replace(stack, children=(*children, *killed))
    # What a rank has written of its stacks itself does not count.
    looks = [(rank, rank.counters(), LifeWatch(rank.counters(), time.monotonic())) for rank in ranks]
    time.sleep(LOOK_S)
    found = (replace(stack, active=_is_active(stack, *look)) for stack, look in zip(stacks, looks, strict=True))
    sys.stdout.buffer.write(encode(Stacks(tuple(found))))
    sys.stdout.buffer.flush()


def _is_active(stack: RankStack, rank: Rank, before: Counters, watch: LifeWatch) -> bool:
    now = rank.counters()
    if stack.state == "D":  # its other threads may go on; what counts is whether the main thread gets anywhere
        return now.own_bytes != before.own_bytes
    return watch.look(now, time.monotonic()) == 0.0


def _stack(rank: Rank) -> RankStack:
    threads, trouble = _by_py_spy(rank.pid)
    if not threads and _catches(rank.pid, STACK_SIGNAL):
        threads = _by_signal(rank.pid)
    return _entry(rank, threads, trouble)


def _entry(rank: Rank, threads: Sequence[tuple[Frame, ...]], trouble: str) -> RankStack:
    return RankStack(
        os.environ.get(NODE, ""),
        rank.rank,
        rank.pid,
        rank.state(),
        rank.waits_in(),
        threads=_shortened(threads),
        trouble="" if threads else trouble,
    )


def _child(pid: int) -> RankStack:
    threads, trouble = _by_py_spy(pid)
    child = Rank(None, pid, ())
    return _entry(child, (own_frames(threads[0]), *threads[1:]) if threads else (), trouble)


def _shortened(threads: Sequence[tuple[Frame, ...]]) -> Threads:
    others = (frames[:MAX_OTHER_FRAMES] for frames in threads[1 : 1 + MAX_OTHER_THREADS])
    # The outermost frame says whether the program is over.
    return *((*frames[: MAX_FRAMES - 1], *frames[MAX_FRAMES - 1 :][-1:]) for frames in threads[:1]), *others


def _by_py_spy(pid: int) -> tuple[Threads, str]:
    """Return a process's threads, or why they cannot be read."""
    program = shutil.which("py-spy", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if program is None:
        return (), "py-spy is not installed"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DUMP_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return (), f"py-spy got no answer within {DUMP_DEADLINE_S:g} s"
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return (), lines[0] if lines else f"py-spy exited with {done.returncode}"
    read = sorted(json.loads(done.stdout), key=lambda thread: thread["os_thread_id"] != pid)
    return tuple(tuple(_frame(frame) for frame in thread["frames"]) for thread in read), ""


def _frame(read: Mapping[str, Any]) -> Frame:
    return Frame(str(read["name"]), str(read["filename"]), int(read["line"]))


def _by_signal(pid: int) -> Threads:
    """Have a process write its stacks, and return them; empty if it does not in time."""
    file = Path(os.environ[ENDPOINT_FILE]).parent / f"stacks-{pid}.txt"
    if not file.exists():  # the handler is the program's own
        return ()
    written = file.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACK_SIGNAL)
    until_s = time.monotonic() + SIGNAL_DEADLINE_S
    found: Threads = ()
    while time.monotonic() < until_s:
        before, found = found, parse_faulthandler(file.read_bytes()[written:].decode(errors="replace"))
        if found and found == before:  # it has written all
            break
        time.sleep(POLL_S)
    return found


def _catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal, of which it would die otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
