"""Stands in for ``srun``: starts a process for each host, all with the standard input that it has itself.

Like ``srun`` it ends all of them if one cannot be started (a host called ``unreachable``), and passes nothing on before
all run. It has a second process that ends them should it be killed, and what holds them does not close their standard
input then. Called with the hosts, separated by commas, and the command line.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading

HOLDER = "--holder"
END = b"\0"


def hold(hosts: list[str], argv: list[str]) -> None:
    """Start the processes, pass on what comes until it has said that it ends, and wait for them."""
    tasks = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, "SLURMD_NODENAME": host}) for host in hosts
    ]
    watchers = [threading.Thread(target=tell_of_end, args=each) for each in zip(hosts, tasks, strict=True)]
    for watcher in watchers:
        watcher.start()
    while data := os.read(0, 1 << 16):
        for task in tasks:
            with contextlib.suppress(BrokenPipeError):
                os.write(task.stdin.fileno(), data.removesuffix(END))  # type: ignore[union-attr]
        if data.endswith(END):
            for task in tasks:
                task.stdin.close()  # type: ignore[union-attr]
            break
    for watcher in watchers:
        watcher.join()


def tell_of_end(host: str, task: subprocess.Popen[bytes]) -> None:
    """Say so if a process is killed."""
    if task.wait() < 0:
        print(f"srun: error: {host}: task 0: Killed", file=sys.stderr, flush=True)


def end_with(parent: int, holder: int) -> None:
    """Be the second process."""
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(parent)], [], [])
    os.killpg(holder, 9)


def main(hosts: list[str], argv: list[str]) -> None:
    if "unreachable" in hosts:
        sys.exit("fake srun: error: Task launch failed on node unreachable")
    if "hanging" in hosts:
        sys.stdin.buffer.read()
    command = [sys.executable, __file__, HOLDER, ",".join(hosts), *argv]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert holder.stdin is not None
    me = os.getpid()
    if os.fork() == 0:
        end_with(me, holder.pid)
        os._exit(0)
    while data := os.read(0, 1 << 16):
        os.write(holder.stdin.fileno(), data)
    os.write(holder.stdin.fileno(), END)
    holder.wait()


if sys.argv[1] == HOLDER:
    hold(sys.argv[2].split(","), sys.argv[3:])
else:
    main(sys.argv[1].split(","), sys.argv[2:])
