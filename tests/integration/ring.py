"""A program whose ranks are connected by plain sockets, of which one has a fault, and a job that runs it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.integration.jobs import RunningJob

FAULTS = {
    "segfault": ("signal.raise_signal(signal.SIGSEGV)", "was killed by SIGSEGV"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "silence": ("os._exit(3)", "exited with 3"),
    "exception": ("raise RuntimeError('odd')", "exited with 1"),
}
HANGS = {
    "loop": ("while True: pass", ""),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", ", stopped"),
    "read": ("os.mkfifo('fifo'); open('fifo').read()", ""),
}
# What the others do when they have lost a peer, before they raise the error.
PEERS = {
    "raise": "pass",
    "slow": "time.sleep(0.5)",
    "quiet": "sys.exit(1)",
    "print": "os.write(2, b'the others are gone\\n'); os._exit(1)",
}
CULPRIT = 3  # of four ranks, on node2
_PROGRAM = """
import os, signal, socket, struct, sys, time

rank, n_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def receive(sock):
    return struct.unpack("!I", sock.recv(4))[0]

def ring():
    listener = socket.create_server(("127.0.0.1", 0))
    with open(f"port{rank}.new", "w") as file:
        file.write(str(listener.getsockname()[1]))
    os.rename(f"port{rank}.new", f"port{rank}")
    while not os.path.exists(following := f"port{(rank + 1) % n_ranks}"):
        time.sleep(0.01)
    return socket.create_connection(("127.0.0.1", int(open(following).read()))), listener.accept()[0]

following, before = ring()
for step in range(1_000_000):
    if (rank, step) == (CULPRIT, 20):
        FAULT
    try:
        following.sendall(struct.pack("!I", step))
        receive(before)
    except (OSError, struct.error):
        PEER
        raise
"""


_OPTIONS = ("--local-nodes=2", "--virtual-gpus=2", "--per-device", "--preload=none")


def _program(action: str, peers: str) -> str:
    return _PROGRAM.replace("CULPRIT", str(CULPRIT)).replace("FAULT", action).replace("PEER", PEERS[peers])


def run_ring(start_job: Callable[..., RunningJob], fault: str, peers: str) -> None:
    """Run the program, with a fault on rank 3 and others that react in some way; expect rank 3 to be named."""
    action, how = FAULTS[fault]
    job = start_job(*_OPTIONS, program=_program(action, peers))
    assert job.finish() != 0, job.everything()
    job.wait_for(rf"end +rank {CULPRIT} on node2 {how} ")


def run_hanging_ring(start_job: Callable[..., RunningJob], fault: str) -> None:
    """Run the program, whose rank 3 hangs in some way while the others wait for it; expect it to be named."""
    action, how = HANGS[fault]
    job = start_job(*_OPTIONS, "--hang-timeout=4", program=_program(action, "raise"))
    job.wait_for(rf"3 ranks wait in receive \(\S+:\d+\); rank {CULPRIT} on node2 is in <module> \(\S+:\d+\){how}")
    job.process.send_signal(signal.SIGTERM)
    job.finish()
