"""What a program writes when it dies of something known: a table, looked through line by line. Pure.

A signature says what kind of trouble a line is about. A **cascade** is written by a process
that noticed the end of another one (a closed connection, a collective that timed out): it never explains a failure
while any process wrote something that is not a cascade, however early it came.

The patterns were collected from the sources and the manuals of PyTorch, NCCL, Gloo, CUDA, Ray, Slurm and the kernel.
``tests/unit/test_signatures.py`` has a line of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Kind = Literal["program", "hardware", "network", "transient", "capacity", "unknown"]
"""What kind of trouble it is."""

# The name of the row of programs that do not understand their arguments: these are ended.
WRONG_ARGUMENTS = "wrong arguments"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# What torchrun, PyTorch and Ray put before a line, and time stamps.
_PREFIX = re.compile(
    r"\[(?:rank|default)\d+\]:\s?|\([\w.<>]+(?: pid=\d+)?(?:, ip=[\d.]+)?\)\s"
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*\]?\s"
)
# What Python puts before the lines of an ExceptionGroup.
_MARGIN = re.compile(r"^ +\| ?")
# A progress bar as tqdm draws it, with a total or without: what comes next is on the same line.
_BAR = re.compile(r"^.*?(?:\d+%\|[^|]*\| *\S+|\b\d[\d.]*\w*) \[\d+:\d\d(?::\d\d)?[<,][^\]]*\]")


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table."""

    name: str  # what it is, in a few words
    pattern: str  # regular expression, looked for in each line without regard to case
    kind: Kind  # what kind of trouble it is
    cascade: bool = False  # whether it is written by a process that noticed the end of another one


_H: Kind = "hardware"
_P: Kind = "program"
_N: Kind = "network"
_T: Kind = "transient"
_C: Kind = "capacity"
# What connects with a service outside of the job.
_OUTSIDE = r"https?://|HTTPS?Connection|requests\.|urllib|botocore|aiohttp"

SIGNATURES: tuple[Signature, ...] = (
    # -- devices
    Signature("uncorrectable memory error of a GPU", r"uncorrectable ECC error", _H),
    Signature("illegal address on a GPU", r"illegal memory access was encountered|misaligned address", _P),
    Signature(
        "assertion on a GPU",
        r"device-side assert triggered|block: \[.*Assertion .* failed|Assertion .* failed\.$",
        _P,
    ),
    Signature(
        "no memory left on a GPU",
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|OutOfMemoryError: (CUDA|HIP)",
        _C,
    ),
    Signature("launch failure on a GPU", r"unspecified launch failure|the launch timed out", _H),
    Signature(
        "GPU missing or busy",
        r"invalid device ordinal|no CUDA-capable device|devices?( is|\(s\) is/are)? busy or unavailable",
        _H,
    ),
    Signature("NVLink error", r"uncorrectable NVLink error|Invalid access of peer GPU memory", _H),
    Signature("fabric manager not ready", r"system not yet initialized", _H),
    Signature(
        "error of a GPU library",
        r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)|CUBLAS_STATUS_(EXECUTION_FAILED|NOT_INITIALIZED)",
        _H,
    ),
    Signature("GPU fell off the bus", r"fallen off the bus|GPU is lost", _H),
    # -- communication
    Signature(
        "InfiniBand completion with an error",
        r"NET/IB ?: Got completion from peer \S+ with (error|status)",
        _N,
    ),
    Signature("wrong use of NCCL", r"ncclInvalid(Usage|Argument)", _P),
    Signature(
        "a peer was lost (NCCL)",
        r"ncclRemoteError|remote process exited or there was a network error|ncclSystemError|unhandled system error"
        r"|NCCL communicator was aborted",
        _N,
        cascade=True,
    ),
    Signature("CUDA error inside NCCL", r"ncclUnhandledCudaError|unhandled cuda error", _H),
    Signature(
        "a collective timed out",
        r"Watchdog caught collective operation timeout|failure detected by watchdog at work sequence id"
        r"|Received a dump signal due to a collective timeout|Observed flight recorder dump signal"
        r"|Timed out waiting \d+ms for (recv|send) operation",
        _N,
        cascade=True,
    ),
    Signature("a CUDA call is stuck", r"watchdog got stuck for \d+ seconds", _H),
    Signature(
        "a peer was lost (Gloo)",
        r"gloo/transport/.*(Connection (closed|reset) by peer|Read error|Broken pipe|Connection refused)",
        _N,
        cascade=True,
    ),
    Signature(
        "the rendezvous lost its store",
        r"recvValue failed|sendBytes failed|failed to recv, got 0 bytes|wait timeout after \d+ms, keys"
        r"|Connection was likely closed\. Did the remote server shutdown",
        _N,
        cascade=True,
    ),
    Signature("no connection to the rendezvous", r"client socket has timed out .* connect to", _T, cascade=True),
    Signature("a port is in use", r"EADDRINUSE|Address already in use", _T),
    Signature(
        "a Ray process was lost",
        r"(ActorDied|ActorUnavailable|WorkerCrashed|OwnerDied|NodeDied|LocalRayletDied)Error",
        _N,
        cascade=True,
    ),
    Signature(
        "torchrun ended the others",
        r"Sending process \d+ closing signal|ChildFailedError|Signal 15 \(SIGTERM\) received",
        _N,
        cascade=True,
    ),
    Signature(
        "a peer was lost",
        r"Dist(Network|Backend|Store)Error|HorovodInternalError|Horovod has been shut down"
        r"|MPIX?_ERR_(PROC_FAILED|REVOKED)|\b(ORTE|PRTE) .*lost|lost communication with |\bHYD[TU]?_\w+"
        r"|StatusCode\.UNAVAILABLE|failed to connect to all addresses|^UNAVAILABLE: "
        r"|coordination service.*(error|stopped|unhealthy|heartbeat|disconnect|shut ?down)|heartbeat time(d )?out"
        r"|JAX distributed service detected fatal errors",
        _N,
        cascade=True,
    ),
    Signature(
        "a connection was lost",
        rf"^(?!.*({_OUTSIDE}))((Connection(Reset|Aborted|Refused)?|BrokenPipe)Error\b|EOFError:?$"
        r"|(\w+\.)*(IncompleteReadError\b|(TimeoutError|timeout): timed out$)"
        r"|(.*\W)?(broken ?pipe|(connection|socket|channel|stream) ?(is |was |has been |unexpectedly )*"
        r"(closed|reset|lost|refused|aborted|broken|dropped|terminated)|closed (the|its|network) connection"
        r"|remote \w+ closed|(closed|reset|lost|left) by (its )?peer|peer (is |was |has )*(closed|gone|lost|left|died)"
        r"|lost (its |the |a )?(connection|peer)|\w*Connection\w*(Closed|Lost|Reset)\w*|java\.io\.EOFException)\b)",
        _N,
        cascade=True,
    ),
    # -- memory, disks and file systems
    Signature(
        "no shared memory left",
        r"insufficient shared memory|out of shared memory",
        _C,
    ),
    Signature("a DataLoader worker died", r"DataLoader worker .*(killed by signal|exited unexpectedly)", _C),
    Signature(
        "no memory left",
        r"oom_kill [1-9]|out of memory: Killed process|Detected \d+ oom[_-]kill event|^(\w+\.)*\w*MemoryError\b"
        r"|running low on memory|OutOfMemoryError|Cannot allocate memory|std::bad_alloc",
        _C,
    ),
    Signature("no room left for State", r"no room left for State at", _C),
    Signature("a quota is used up", r"Disk quota exceeded|\[Errno 122\]", _C),
    Signature("a file could not be written", r"PytorchStreamWriter failed|basic_ios::clear: iostream error", _C),
    Signature("no space left on a disk", r"No space left on device|\[Errno 28\]|OutOfDiskError", _C),
    Signature(
        "a file system that is gone",
        r"Stale file handle|\[Errno 116\]|\[Errno 5\]|Input/output error|Transport endpoint is not connected",
        _T,
    ),
    Signature("a failing disk", r"Read-only file system|Buffer I/O error|I/O error, dev|nvme.*timeout", _H),
    # -- what the kernel writes
    Signature("Xid error of a GPU", r"NVRM: Xid \(", _H),
    Signature(
        "hardware error of the machine",
        r"mce: \[Hardware Error\]|EDAC .*\bUE\b|Memory failure:|AER: .*(Uncorrect|Fatal)",
        _H,
    ),
    Signature("the machine is stuck", r"blocked for more than \d+ seconds|soft lockup|rcu.*stall", _H),
    # -- the program
    Signature(
        "an error in its code",
        r"^(\w+\.)*(Syntax|Indentation|Name|Type|Attribute|Key|Index|Assertion|ZeroDivision|Value|NotImplemented)Error\b",
        _P,
    ),
    Signature(
        "something that it needs is missing",
        r"^(\w+\.)*(Import|ModuleNotFound|FileNotFound|Permission|IsADirectory|NotADirectory)Error\b",
        _P,
    ),
    Signature(WRONG_ARGUMENTS, r"^usage: |: error: (unrecognized|the following) arguments", _P),
    Signature("the numbers diverged", r"\b(loss|grad(ient)?([ _]norm)?)\W{0,3}(is )?(nan|inf)\b|non-finite", _P),
)
_COMPILED = tuple((re.compile(each.pattern, re.IGNORECASE), each) for each in SIGNATURES)
# Advice that PyTorch prints below every CUDA error names other troubles than the one at hand.
_ADVICE = re.compile(
    r"CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|To enable traceback see|might be asynchronously reported"
)
# A warning of Python's: whatever it is about, the program goes on.
_WARNING = re.compile(r"^\S.*:\d+: \w*Warning: ")


def clean_line(line: str) -> str:
    """Return a line without colours, progress bars, the prefixes of launchers, time stamps, and a group's margin."""
    line = _ANSI.sub("", line).rstrip()
    while match := _PREFIX.match(line) or _BAR.match(line):
        line = line[match.end() :]
    return _MARGIN.sub("", line)


def is_warning(line: str) -> bool:
    """Return whether a clean line is a warning of Python's; the line of code below it is printed with it."""
    return _WARNING.match(line) is not None


@lru_cache(maxsize=4096)
def signature_of(line: str) -> Signature | None:
    """Return the first signature that matches a clean line; None if none does."""
    if is_warning(line) or _ADVICE.search(line):
        return None
    return next((each for pattern, each in _COMPILED if pattern.search(line)), None)
