"""The kinds of fault of ``python -m benchmarks failures``."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["CGROUPS", "KINDS", "STEPS", "Kind"]

STEPS = 30

# Control groups of version 1 and 2.
CGROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


_Peers = Literal["", "raise", "slow", "quiet", "print"]
_PEERS: dict[str, _Peers] = {
    "raise": "raise",
    "raise after 0.5 s": "slow",
    "exit with 1 in silence": "quiet",
    "print a line and exit at once": "print",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes
    ----------
    name
        What happens.
    action
        What the toy program does.
    node
        On which node: ``node2``, ``node1``, or ``all``.
    often
        Whether it happens each time, or only once on each node.
    expected
        ``finish``: the job can go on. ``end``: nothing helps, and the job should end soon with the program's error.
    culprit
        The node to name; empty if none is to blame.
    cleanup_s
        How long a rank takes to end after an error, in seconds.
    program
        What the toy program is made of: PyTorch's gloo, plain ``sockets``, ``C`` with sockets, or actors of ``Ray``.
    peers
        With plain sockets: what a rank does that has lost its peer.
    needs
        What the machine must allow: ``disk`` to mount a small file system, ``cgroup`` to make a control group,
        ``cc`` a compiler of C.
    """

    name: str
    action: str
    node: Literal["node1", "node2", "all"] = "node2"
    often: bool = False
    expected: Literal["finish", "end"] = "finish"
    culprit: str = "node2"
    cleanup_s: float = 0.0
    program: Literal["gloo", "sockets", "C", "Ray"] = "gloo"
    peers: _Peers = ""
    needs: Literal["", "disk", "cgroup", "cc"] = ""

    def environment(self) -> str:
        """Return what the toy program needs to know, as JSON."""
        fault = {"action": self.action, "node": self.node, "often": self.often, "peers": self.peers}
        return json.dumps({**fault, "cleanup_s": self.cleanup_s, "steps": STEPS})

    def missing(self) -> str:
        """Return why it cannot be made to happen on this machine; empty if it can."""
        if self.needs == "cc":
            return "" if shutil.which("cc") else "needs a compiler of C"
        if self.needs and os.geteuid() != 0:
            return "needs root"
        if self.needs == "cgroup" and not any((root / "cgroup.procs").exists() for root, _ in CGROUPS):
            return "needs control groups"
        return ""


KINDS = (
    Kind("an exception, once", "exception"),
    Kind("an exception; ranks take 2 s to clean up", "exception", cleanup_s=2.0),
    Kind("`CUDA error: uncorrectable ECC error`, always on node2", "ecc", often=True),
    Kind("the same exception on all ranks, always", "bug", "all", often=True, expected="end", culprit=""),
    Kind("an exception on all ranks, once", "exception", "all", culprit=""),
    Kind("exit code 2, always", "exit 2", "all", often=True, expected="end", culprit=""),
    Kind("exit code 0 in the middle of the work, once", "exit 0"),
    Kind("SIGKILL, once", "kill"),
    Kind("SIGSEGV, once", "segfault"),
    Kind("SIGABRT, always on node2", "abort", often=True),
    Kind("`MemoryError`, once", "memory error"),
    Kind("killed by the kernel for want of memory, once", "out of memory", needs="cgroup"),
    Kind("a full disk on node2", "disk", often=True, needs="disk"),
    Kind("a module is missing on node2", "import", often=True),
    Kind("an endless loop in Python, once", "loop"),
    Kind("a rank is stopped (SIGSTOP), once", "stop"),
    Kind("a rank waits in another collective, once", "wait"),
    Kind("a node's agent is killed", "agent"),
    Kind("a node is frozen, all its processes", "freeze"),
    Kind("the launcher is killed", "launcher", "node1", culprit=""),
    *(
        Kind(f"plain sockets: {name}; the others {do}", action, program="sockets", peers=peers)
        for name, action in (
            ("SIGSEGV", "segfault"),
            ("SIGKILL", "kill"),
            ("`os._exit(3)`", "exit 3"),
            ("an exception", "exception"),
        )
        for do, peers in _PEERS.items()
    ),
    *(
        Kind(f"plain sockets, once: {name}", action, program="sockets", peers="raise")
        for name, action in {
            "SIGBUS": "SIGBUS",
            "SIGFPE": "SIGFPE",
            "SIGILL": "SIGILL",
            "SIGABRT": "SIGABRT",
            "SIGUSR1": "SIGUSR1",
            "exit code 1 in silence": "exit 1",
            "`sys.exit` with a message": "message",
            "an assertion": "assertion",
            "`KeyboardInterrupt`": "interrupt",
            "no memory on the GPU": "cuda memory",
            "an error raised from another": "from",
            "an error while another is handled": "during",
            "an error, and one at exit": "atexit",
            "an error in a thread, then exit code 1": "thread",
            "an error of a child process": "child",
            "a group of errors": "group",
            "endless recursion": "recursion",
        }.items()
    ),
    *(
        Kind(f"plain sockets, always on node2: {name}", action, often=True, program="sockets", peers="raise")
        for name, action in {
            "SIGSEGV": "segfault",
            "`os._exit(3)`": "exit 3",
            "`CUDA error: unspecified launch failure`": "launch failure",
            "an error of input": "input",
        }.items()
    ),
    *(
        Kind(
            f"plain sockets, once, compiled code: {name}", f"C {function}", program="sockets", peers="raise", needs="cc"
        )
        for name, function in {
            "C's `assert`": "asserts",
            "memory freed twice": "frees_twice",
            "a write to address 0": "writes_to_null",
        }.items()
    ),
    *(
        Kind(f"a ring in C: {name}", action, often=often, program="C", needs="cc")
        for name, action, often in (
            ("a division by zero, once", "divides by zero", False),
            ("an assertion, once", "asserts", False),
            ("a write to address 0, always on node2", "writes to null", True),
            ("`abort()`, always on node2", "aborts", True),
            ("`exit(3)` in silence, once", "exits", False),
            ("a message, then `exit(1)`, once", "says why", False),
            ("a rank waits for ever, once", "stops", False),
            ("a rank computes for ever, once", "loops", False),
        )
    ),
    *(
        Kind(f"actors of Ray: {name}", action, often=often, program="Ray")
        for name, action, often in (
            ("an exception, once", "exception", False),
            ("`MemoryError`, once", "memory error", False),
            ("`os._exit(3)`, once", "exit 3", False),
            ("SIGKILL, always on node2", "kill", True),
            ("SIGSEGV, once", "segfault", False),
            ("an endless loop, once", "loop", False),
            ("an actor is stopped (SIGSTOP), once", "stop", False),
            ("a node's raylet is killed", "raylet", False),
        )
    ),
)
