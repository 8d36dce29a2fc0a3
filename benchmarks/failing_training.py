"""The toy program of ``python -m benchmarks failures``: data-parallel steps, a checkpoint, and one fault.

It is the same for all systems. Each step is an ``all_reduce`` over gloo, or a round of a ring of plain sockets; every
five steps rank 0 writes the number of the next one to a file, from which the next launch goes on. The environment says
where its folder is (``TOY_FOLDER``), which node this is (``TOY_NODE``, or laggard's own variable), and which fault to
make (``TOY_FAULT``, JSON).
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import faulthandler
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STEP_S = 0.1
SAVE_EVERY = 5
FAULT_STEP = 12
SCRATCH_BYTES = 8192
FOLDER = Path(os.environ["TOY_FOLDER"])
NODE = os.environ.get("LAGGARD_NODE") or os.environ["TOY_NODE"]
FAULT = json.loads(os.environ["TOY_FAULT"])


def log(file: str, *values: object) -> None:
    """Append a line with the time to a file of this run."""
    with (FOLDER / file).open("a") as lines:
        lines.write(" ".join(map(str, [time.time(), *values])) + "\n")


def fires() -> bool:
    """Return whether the fault is due here: on its node or on all, and each time or only once on each node."""
    if FAULT["node"] not in (NODE, "all"):
        return False
    if FAULT["often"]:
        return True
    try:
        (FOLDER / f"fired-{NODE}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def error(text: str) -> None:
    raise RuntimeError(text)


def look_up_what_is_not_there() -> None:
    os.environ["THERE_IS_NO_SUCH_VARIABLE"]


def hang_in_a_loop() -> None:
    while True:
        pass


def wait_for_what_nobody_sends() -> None:
    """Skip the step's collective and wait for another: the other rank does not take part in it."""
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=0, tag=7)


def run_out_of_memory() -> None:
    """Join a control group that is too small, and use more: the kernel kills this process."""
    (Path(os.environ["TOY_CGROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
    bytearray(1 << 30)


def above() -> list[Any]:
    """Return the processes that started this one on its node: laggard's agent at the most, or torchrun's."""
    import psutil

    parents: list[Any] = []
    for parent in psutil.Process().parents():
        command = " ".join(parent.cmdline())
        if "laggard.resilience.agent.agent" in command:
            return [*parents, parent]
        if "torchrun" in command or "torch.distributed.run" in command:
            parents.append(parent)
    return parents


def freeze_the_node() -> None:
    for process in above()[::-1]:
        process.suspend()
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_the_agent() -> None:
    above()[-1].kill()
    signal.pause()


def kill_the_raylet() -> None:
    import psutil

    next(parent for parent in psutil.Process().parents() if parent.name() == "raylet").kill()
    signal.pause()


def ask_to_kill_the_launcher() -> None:
    (FOLDER / "kill-launcher").touch()


def fail_for_a_reason() -> None:
    try:
        look_up_what_is_not_there()
    except KeyError as reason:
        raise RuntimeError("the batch cannot be read") from reason


def fail_while_handling() -> None:
    try:
        look_up_what_is_not_there()
    finally:
        error("the cleanup failed, too")


def fail_at_exit_too() -> None:
    atexit.register(error, "the last flush failed")
    error("the toy failed once")


def fail_in_a_thread() -> None:
    thread = threading.Thread(target=error, args=("the loader failed",))
    thread.start()
    thread.join()
    os._exit(1)


def fail_in_a_child() -> None:
    subprocess.run([sys.executable, "-c", "raise SystemExit('no such file: part-7')"], check=True)


def fail_twice_at_once() -> None:
    raise ExceptionGroup("loaders", [ValueError("odd shape"), OSError("no file")])


def run_too_deep() -> None:
    run_too_deep()


def compiled(function: str) -> None:
    """Call a function of the library that the benchmark has had compiled."""
    getattr(ctypes.CDLL(str(FOLDER / "faults.so")), function)(0)


ACTIONS: dict[str, Callable[[], object]] = {
    "exception": lambda: error("the toy failed once"),
    "ecc": lambda: error("CUDA error: uncorrectable ECC error encountered"),
    "bug": look_up_what_is_not_there,
    "memory error": lambda: (_ for _ in ()).throw(MemoryError()),
    "out of memory": run_out_of_memory,
    "exit 2": lambda: sys.exit(2),
    "exit 0": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "loop": hang_in_a_loop,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "wait": wait_for_what_nobody_sends,
    "exit 3": lambda: os._exit(3),
    "agent": kill_the_agent,
    "raylet": kill_the_raylet,
    "freeze": freeze_the_node,
    "launcher": ask_to_kill_the_launcher,
    "exit 1": lambda: os._exit(1),
    "message": lambda: sys.exit("the toy has no data left"),
    "assertion": lambda: (_ for _ in ()).throw(AssertionError("shapes differ")),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "launch failure": lambda: error("CUDA error: unspecified launch failure"),
    "cuda memory": lambda: error("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "input": lambda: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error", "/data/part-7")),
    "from": fail_for_a_reason,
    "during": fail_while_handling,
    "atexit": fail_at_exit_too,
    "thread": fail_in_a_thread,
    "child": fail_in_a_child,
    "group": fail_twice_at_once,
    "recursion": run_too_deep,
    **{f"C {function}": partial(compiled, function) for function in ("asserts", "frees_twice", "writes_to_null")},
    **{
        name: partial(signal.raise_signal, signal.Signals[name])
        for name in ("SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGUSR1")
    },
}


def fill_the_disk() -> None:
    """Write this node's scratch file, which has no room for long where the disk is small."""
    with (FOLDER / f"scratch-{NODE}" / "file").open("ab", buffering=0) as file:
        try:
            file.write(bytes(SCRATCH_BYTES))
        except OSError:
            log("faults", NODE)
            raise


def make_fault() -> None:
    log("faults", NODE)
    ACTIONS[FAULT["action"]]()


def first_step() -> int:
    saved = FOLDER / "checkpoint"
    return int(saved.read_text()) if saved.exists() else 0


def save(next_step: int) -> None:
    unfinished = FOLDER / "checkpoint.new"
    unfinished.write_text(str(next_step))
    unfinished.replace(FOLDER / "checkpoint")


def report_progress(step: int) -> None:
    if "LAGGARD_LAUNCH" in os.environ:
        from laggard import Job

        Job.current().progress(step)


class Gloo:
    """Ranks that reduce a tensor together."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.step = lambda: dist.all_reduce(torch.ones(1))
        self.close = dist.destroy_process_group


class Ring:
    """Ranks that pass on a word by plain sockets, each to the next one."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK") or os.environ["NODE_RANK"])
        n_ranks = int(os.environ.get("WORLD_SIZE") or os.environ["NNODES"])
        launch = os.environ.get("LAGGARD_LAUNCH") or os.environ["TORCHELASTIC_RESTART_COUNT"]
        listener = socket.create_server(("127.0.0.1", 0))
        log(f"ring{launch}-{self.rank}", listener.getsockname()[1])
        following = FOLDER / f"ring{launch}-{(self.rank + 1) % n_ranks}"
        while not (following.exists() and following.read_text().endswith("\n")):
            time.sleep(0.01)
        self.next = socket.create_connection(("127.0.0.1", int(following.read_text().split()[-1])))
        self.previous, _ = listener.accept()

    def step(self) -> None:
        """Wait for the rank before this one."""
        try:
            self.next.sendall(struct.pack("!I", self.rank))
            struct.unpack("!I", self.previous.recv(4))
        except (OSError, struct.error):
            self.lose_peer()
            raise

    def lose_peer(self) -> None:
        """Do what a program may do that has lost its peer, before it raises the error."""
        if FAULT["peers"] == "slow":
            time.sleep(0.5)
        elif FAULT["peers"] == "quiet":
            sys.exit(1)
        elif FAULT["peers"] == "print":
            sys.stderr.write(f"rank {self.rank}: the others are gone\n")
            os._exit(1)

    def close(self) -> None:
        """Leave the ring, as the process ends."""


def train() -> None:
    """Run the steps that are left."""
    ranks = Ring() if FAULT["peers"] else Gloo()
    rank = ranks.rank
    log(f"starts{rank}", os.getpid(), NODE)
    try:
        for step in range(first_step(), FAULT["steps"]):
            if FAULT["action"] == "disk":
                fill_the_disk()
            elif step == FAULT_STEP and FAULT["action"] in ACTIONS and fires():
                make_fault()
            ranks.step()
            time.sleep(STEP_S)
            if rank == 0:
                log("steps", step, os.getpid())
                if (step + 1) % SAVE_EVERY == 0:
                    save(step + 1)
                report_progress(step)
    finally:
        ranks.close()
        time.sleep(FAULT["cleanup_s"])  # as loggers and uploads take


def main() -> None:
    """Run one rank of one launch."""
    if FAULT["action"] == "import" and fires():
        log("faults", NODE)
        import a_module_that_only_the_other_nodes_have  # type: ignore[import-not-found]  # noqa: F401
    if FAULT["action"].startswith(("segfault", "SIG", "C ")):
        faulthandler.disable()  # torchrun's and ours would print a stack; the kernel's word is what counts
    train()


if __name__ == "__main__":
    main()
