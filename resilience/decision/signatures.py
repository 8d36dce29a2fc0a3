"""What a program writes when it dies of something known: a table, looked through line by line. Pure.

A signature says what kind of trouble a line is about, and how much the line says. One that
names a reason counts before the bare type of an exception, that before what only tells how a process ended. A
**cascade** is written by a process that noticed the end of another one (a closed connection, a collective that timed
out): it never explains a failure while any process wrote something that is not a cascade, however early it came.

The patterns were collected from the sources and the manuals of what the rows name. ``tests/unit/test_signatures.py``
has lines of each.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from laggard.resilience.decision.prefixes import is_chatter

Kind = Literal["program", "hardware", "network", "transient", "capacity", "unknown"]
"""What kind of trouble it is."""

Says = Literal["why", "type", "how", "peer"]
"""How much a line says.

``why``: the reason. ``type``: of what type an error is, and no more. ``how``: how a process ended or broke off, and
what was written before may say why. ``peer``: that another process ended.
"""


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table."""

    name: str  # what it is, in a few words
    pattern: str  # regular expression, looked for in each line without regard to case
    kind: Kind  # what kind of trouble it is
    says: Says = "why"  # how much it says
    is_proof: bool = False  # whether hardly anything but a bad node is a reason to write it

    @property
    def cascade(self) -> bool:
        """Whether it is written by a process that noticed the end of another one."""
        return self.says == "peer"


_H: Kind = "hardware"
_P: Kind = "program"
_N: Kind = "network"
_T: Kind = "transient"
_C: Kind = "capacity"
_U: Kind = "unknown"
# What connects with a service outside of the job.
_OUTSIDE = r"https?://|HTTPS?Connection|requests\.|urllib|botocore|aiohttp"
# The name of an exception of Python or the JVM, with its module or package: what an error line begins with.
_TYPE = r"^(?:Caused by: |Exception in thread \S+ )?(?:\w+\.)*"


# The name of the rows of programs that do not understand their arguments: these are ended.
WRONG_ARGUMENTS = "wrong arguments"
# Of a process that SIGKILL ended: what most often sends it is the kernel, for want of memory.
KILLED = "it was killed"


def _ended_by(number: int, name: str, *words: str) -> str:
    """Return a pattern of the ways in which shells, schedulers and launchers say that a signal ended a process."""
    code = rf"(exit|return|status)\w*( ?code| status)?[:= ]*\(?(-{number}|{128 + number})\b"
    told = rf"\bsignal:? {number}\b|{code}|\b{name}\b"
    said = "|".join(words)
    return rf"{told}|^(.*[:\d] +)?({said})( .*core dumped.*| \(core dumped\))?( {{2,}}.*)?$|signal: ({said})"


SIGNATURES: tuple[Signature, ...] = (
    # -- devices: the CUDA runtime's texts, the driver's names (CUDA_ERROR_...), HIP's
    Signature(
        "uncorrectable memory error of a GPU",
        r"uncorrectable ECC error|ECC_UNCORRECTABLE|ECCNotCorrectable|UNCORRECTABLE MEMORY ERROR",
        _H,
        is_proof=True,
    ),
    Signature(
        "illegal address on a GPU",
        r"illegal memory access|misaligned address|ERROR_ILLEGAL_ADDRESS|illegal instruction was encountered"
        r"|Memory access fault by GPU|MEMORY_APERTURE_VIOLATION",
        _P,
    ),
    Signature("assertion on a GPU", r"block: \[.*Assertion .* failed", _P),
    Signature("an assertion on a GPU before", r"device-side assert triggered|CUDA_ERROR_ASSERT", _P, "how"),
    Signature(
        "no memory left on a GPU",
        r"(CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory|STATUS_ALLOC_FAILED"
        r"|OutOfMemoryError: (CUDA|HIP)|(ERROR_|hipError|failure.*)out_?( of )?memory|ErrorMemoryAllocation"
        r"|RESOURCE_?EXHAUSTED(Error)?: |OOM when allocating|(cuda|cublas|gpu|device)\b.{0,40}\bout of memory"
        r"|No available memory for the cache|stored in KV cache"
        r"|exceed(s|ed) .*hbm|Ran out of memory in memory space",
        _C,
    ),
    Signature(
        "launch failure on a GPU",
        r"unspecified launch failure|the launch timed out|ERROR_LAUNCH_(FAILED|TIMEOUT)",
        _H,
    ),
    Signature(
        "GPU missing or busy",
        r"no CUDA-capable device|devices?( is| are|\(s\) is/are)? busy or unavailable|CUDA_ERROR_NO_DEVICE"
        r"|communicate with the NVIDIA driver|Driver/library version mismatch|Unable to determine the device handle"
        r"|Failed to initialize NVML: (?!Driver Not)|No devices were found|nvml error|nvidia-container-cli",
        _H,
    ),
    Signature(
        "it does not fit its GPU or driver",
        r"invalid device ordinal|no kernel image is available|driver version is insufficient|driver on your system"
        r"|not compiled with CUDA|unsupported toolchain|No CUDA GPUs are available|NoBinaryForGpu|no binary for",
        _P,
    ),
    Signature("a GPU that does not start", r"CUDA unknown error|CUDA driver initialization failed", _U),
    Signature("a TPU that is not healthy", r"\bTPU\b.*(not HEALTHY|UNHEALTHY)", _H),
    Signature("NVLink error", r"uncorrectable NVLink error|Invalid access of peer GPU memory", _H),
    Signature("fabric manager not ready", r"system not yet initialized|SYSTEM_NOT_READY", _H),
    Signature(
        "GPU fell off the bus",
        r"fallen off the bus|GPU_?( is |_IS_)lost|HW Exception by GPU|GPU Hang|CUDA error: (unknown error|hardware)"
        r"|cuda runtime error \(30\)",
        _H,
        is_proof=True,
    ),
    Signature(
        "error of a GPU library",
        r"\b(CUDNN|CUBLAS|CUFFT|CUSOLVER|MIOPEN)(_?STATUS_?\w+| error| failure)",
        _P,
        "how",
    ),
    # -- communication: NCCL, PyTorch, Gloo, UCX and libfabric
    Signature(
        "InfiniBand completion with an error",
        r"NET/IB ?: Got completion from peer \S+ with (error|status)|RETRY EXCEEDED|[rR]etry (count|counter) exceeded"
        r"|got completion with error|ibv_\w+ failed|Got async event.*(port|fatal|error)",
        _N,
    ),
    Signature(
        "wrong use of NCCL",
        r"Duplicate GPU detected|no socket interface found|Detected mismatch between collectives"
        r"|Tensors must be (CUDA|contiguous)",
        _P,
    ),
    Signature(
        "invalid use of NCCL",
        r"ncclInvalid(Usage|Argument)|invalid usage|ncclInternalError|NCCL error.*internal error",
        _P,
        "how",
    ),
    Signature(
        "a peer was not reached",
        r"NCCL WARN .*(failed ?: (Connection|No route|Software)|timed out|closed by remote)|socket\w+: .* failed :"
        r"|Socket error|failed to connect to .*(peer|rank)",
        _N,
        "peer",
    ),
    Signature(
        "a peer was lost (NCCL)",
        r"ncclRemoteError|remote process exited or there was a network error|ncclSystemError|unhandled system error"
        r"|NCCL communicator was aborted|DistBackendError",
        _N,
        "peer",
    ),
    Signature("CUDA error inside NCCL", r"ncclUnhandledCudaError|unhandled cuda error", _U, "how"),
    Signature(
        "a collective timed out",
        r"Watchdog caught collective operation timeout|failure detected by watchdog at work sequence id"
        r"|Received a dump signal due to a collective timeout|Observed flight recorder dump signal"
        r"|Timed out waiting \d+ms for (recv|send) operation|monitoredBarrier|barrier timed out",
        _N,
        "peer",
    ),
    Signature("a CUDA call is stuck", r"watchdog got stuck for \d+ seconds", _U, "how"),
    Signature(
        "a peer was lost (Gloo)",
        r"gloo/transport/.*(Connection (closed|reset) by peer|Read error|Broken pipe|Connection refused)"
        r"|Gloo connectFullMesh failed",
        _N,
        "peer",
    ),
    Signature("a port is in use", r"EADDRINUSE|Address already in use|errno: 98\b", _T),
    Signature(
        "something is in use",
        r"Device or resource busy|\[Errno 16\]|already in use by|unable to lock file|database is locked|Text file busy",
        _T,
    ),
    Signature(
        "the rendezvous lost its store",
        r"recvValue failed|sendBytes failed|failed to recv, got 0 bytes|wait timeout after \d+ms, keys"
        r"|Connection was likely closed\. Did the remote server shutdown|store->get\(|Dist(Store|Network)Error"
        r"|Rendezvous(Connection|Closed|Timeout|State)Error|client socket has (timed out|failed to connect to any)"
        r"|connect\(\) timed out"
        r"|waiting for clients|store.based barrier|initializing process group in store|RuntimeError: Socket Timeout",
        _N,
        "peer",
    ),
    Signature(
        "a node of Ray's was lost",
        r"its node has died|node it was running on is dead|[nN]ode has crashed|node .*(was|has been) (terminated"
        r"|marked dead)|missed too many heartbeats",
        _H,
    ),
    Signature(
        "a Ray process was lost",
        r"(ActorDied|ActorUnavailable|RayActor|WorkerCrashed|OwnerDied|NodeDied|LocalRayletDied)Error"
        r"|worker (process has )?died|[rR]aylet (failed|died)",
        _N,
        "peer",
    ),
    Signature(
        "a peer was lost (MPI)",
        r"lost communication with|MPIX?_ERR_(PROC_FAILED|REVOKED)|\b(ORTE|PRTE) .*lost|\bHYD[TU]?_\w+"
        r"|mca_btl_tcp\w+: .*failed|MPIDI_\w+.*Communication error"
        r"|unable to complete a TCP connection|HorovodInternalError|Horovod has been shut down",
        _N,
        "peer",
    ),
    Signature(
        "a peer was lost (gRPC)",
        r"StatusCode\.(UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED)|\b(UNAVAILABLE|DEADLINE_EXCEEDED): |\bUnavailableError"
        r"|JAX distributed service detected fatal|another task died|failed to connect to all addresses"
        r"|coordination service.*(error state|stopped|unhealthy|heartbeat|disconnect|shut ?down)|heartbeat time(d )?out"
        r"|ExecutorLostFailure|FetchFailed",
        _N,
        "peer",
    ),
    Signature(
        "its engine has ended",
        r"EngineDead|Engine core initialization failed|Background loop has errored|WorkerProc initialization failed",
        _U,
        "peer",
    ),
    Signature(
        "torchrun ended the others",
        r"Sending process \d+ closing signal|Signal 15 \(SIGTERM\) received",
        _N,
        "peer",
    ),
    # -- services outside of the job: urllib3, requests, botocore, gRPC clients, name servers
    Signature(
        "a name was not resolved",
        r"name resolution|NameResolutionError|Name or service not known|getaddrinfo|gaierror|Could not resolve host"
        r"|UnknownHostException|no such host|nodename nor servname|No address associated with hostname",
        _T,
    ),
    Signature(
        "it may not have what it asks for",  # nor find
        r"\b40[0134] Client Error|HTTP ?Error 40[0134]|(Repository|Entry|Revision)NotFound|GatedRepo|Unauthorized"
        r"|\b403\b.*Forbidden|Access ?Denied|NoSuch(Bucket|Key)|NoCredentials|InvalidAccessKey|[aA]uthentication failed"
        r"|Permission denied \(publickey|Host key verification failed|Err(or)?ImagePull|pull access denied"
        r"|Invalid account|is not a (local folder|valid model identifier)",
        _P,
    ),
    Signature(
        "a service does not answer",
        r"HTTPS?ConnectionPool|Max retries exceeded|\b50[0234] (Server|Internal|Bad|Service|Gateway|Backend)"
        r"|(HTTP ?Error|status|code|HTTP/[\d.]+)\W+(429|50[0234])\b|Too Many Requests|Bad Gateway"
        r"|Service (\w+ )?Unavailable|SlowDown"
        r"|Gateway Time-?out|Internal Server Error|RequestTimeout|EndpointConnectionError|Throttl(ing|ed)(Error"
        r"|Exception)"
        r"|(Read|Connect)Timeout|IncompleteRead[(:]|ChunkedEncoding|RemoteDisconnected|SSLError|SSL: "
        r"|RateLimit\w*(Error|Exceeded)"
        r"|CommError|n[o']t (reach |connect to '?https?:)|LocalEntryNotFound|ServiceUnavailable|reached .*rate limit"
        r"|(Server|Database|Operational)\w*Error: .*(connect|server|timed? ?out)|curl: \(\d+\)|Curl returned error"
        r"|^(aiohttp|fsspec|httpx|httpcore|requests|urllib3|boto\w*|s3fs|gcsfs|google|azure|huggingface_hub|wandb"
        r"|pymongo"
        r"|redis|openai)\.[\w.]*(Timeout|Connect|Disconnect|Unavailable|Payload|Server|Protocol|Retry)\w*(:|$)",
        _T,
    ),
    # -- memory, disks and file systems
    Signature(
        "no shared memory left",
        r"(insufficient|out of) shared memory|creating shared memory|failed to extend /dev/shm|/dev/shm/\S+.*(fail"
        r"|error)",
        _C,
    ),
    Signature(
        "no memory left",
        r"oom_kill [1-9]|out of memory: Killed process|\boom[_-]kill\b|^(\w+\.)*\w*MemoryError\b|OOM ?Killed"
        r"|low on (resource: )?(memory|ephemeral)|memory pressure|OutOfMemoryError|Cannot allocate memory|bad_?alloc"
        r"|task \d\S*: Out Of Memory"
        r"|exceed(ed|ing|s)? .*memory limit|memory.{0,20} exceeded|can't allocate memory|not enough memory: you tried"
        r"|runtime: out of memory|TERM_MEMLIMIT|virtual memory exhausted|Unable to allocate \d|insufficient virtual",
        _C,
    ),
    Signature(
        "no files, threads or processes left",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata|can't start new thread|pthread_create.* failed"
        r"|Resource temporarily unavailable|unable to create .*thread|fork: (retry|Cannot)",
        _C,
    ),
    Signature("no room left for State", r"no room left for State at", _C),
    Signature("a quota is used up", r"quota (was |is |has been )?exceeded|\[Errno 122\]|over quota|QuotaExceeded", _C),
    Signature(
        "the time is up",
        r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime .*exceeded|(wall ?time|run ?time|time) limit (reached|exceeded)"
        r"|(exceeded|reached) .*(wall ?time|time limit)",
        _C,
    ),
    Signature(
        "nothing is free",
        r"not enough slots|\bInsufficient (nvidia|cpu|memory|capacity)|nodes are available: |cannot be scheduled"
        r"|node configuration is not available|Requested nodes are busy|QOSMax|AssocGrp|requested than permitted"
        r"|(RESOURCE_POOL_EXHAUSTED|InsufficientInstanceCapacity|does not have enough resources)",
        _C,
    ),
    Signature(
        "a file could not be written",
        r"PytorchStreamWriter failed|basic_ios::clear: iostream error|unexpected pos \d+ vs",
        _C,
    ),
    Signature(
        "no space left on a disk",
        r"No space left on device|\[Errno 28\]|OutOfDiskError|ENOSPC|enough disk space|disk (is )?full",
        _C,
    ),
    Signature(
        "a file system that is gone",
        r"Stale (NFS )?file handle|\[Errno (116|5|107|108|121)\]|Input/output error|transport endpoint"
        r"|Remote I/O error|nfs: server \S+ not responding",
        _T,
    ),
    Signature("a file system that may only be read", r"Read-only file system|\[Errno 30\]", _U),
    Signature("a failing disk", r"Remounting filesystem read-only|Buffer I/O error|I/O error, dev|nvme.*timeout", _H),
    Signature(
        "a damaged file",
        r"failed finding central directory|PytorchStreamReader failed|archive is corrupted|Error while deserializing"
        r"|HeaderTooLarge|IncompleteBuffer|pickle data was truncated|Ran out of input|BadZipFile|unexpected EOF"
        r"|(file|data) (is|was|may be) (truncated|corrupt)|DataLossError|Consistency check failed|checksum mismatch",
        _U,
    ),
    # -- what the kernel, Slurm, other schedulers and operators do
    Signature("Xid error of a GPU", r"NVRM: Xid \(", _H),
    Signature(
        "hardware error of the machine",
        r"mce: \[Hardware Error\]|EDAC .*\bUE\b|Memory failure:|AER: .*(Uncorrect|Fatal)",
        _H,
        is_proof=True,
    ),
    Signature("the machine is stuck", r"blocked for more than \d+ seconds|soft lockup|rcu.*stall", _H),
    Signature(
        "a node failed",
        r"Node failure on|DUE TO NODE FAILURE|\bNODE_?FAIL\b|NodeNotReady|NodeLost"
        r"|\bnodes? \S+ (is |are )?(not responding|down)\b",
        _H,
    ),
    Signature(
        "it was ended from outside",
        r"DUE TO (PREEMPTION|JOB REQUEUE)|\b(job|node|instance|pod|vm|tpu)\b.{0,40}\bpreempted\b|TERM_(OWNER|PREEMPT)"
        r"|spot (interrupt|terminat)"
        r"|termination is imminent"
        r"|SIGHUP|signal:? 1\b|Hangup$|CANCELLED by",
        _T,
    ),
    # -- the program
    Signature(
        "a failed assertion",
        r"Assertion .* failed|^Assertion failed|\bCheck failed: ",
        _P,
    ),
    Signature(
        WRONG_ARGUMENTS,
        r"(^|: )error: (unrecognized arg|the following arg|argument \S+: )|^Error: (No such (option|command)"
        r"|Invalid value for)"
        r"|unrecognized option|Could not override",
        _P,
    ),
    Signature("the numbers diverged", r"\b(loss|grad(ient)?([ _]norm)?)\W{0,3}(is )?(nan|inf)\b|non-finite", _P),
    Signature(
        "it does not compile",
        r"Error building extension|fatal error: .*: No such file|undefined reference|nvcc fatal"
        r"|^\S+:\d+:\d+: (fatal )?error: ",
        _P,
    ),
    Signature(
        "something that it needs is missing",
        rf"{_TYPE}(Import|ModuleNotFound|FileNotFound|Permission|IsADirectory|NotADirectory|NoClassDefFound)Error\b"
        r"|^(?!.*: cd: ).*: (command not found|No such file or directory|Permission denied|not found)$"
        r"|cannot open shared object|undefined symbol|version `\S+' not found|can't open file|No module named"
        r"|error: (execve|chdir)\(|ClassNotFoundException",
        _P,
        "type",
    ),
    Signature(
        "an error in its code",
        rf"{_TYPE}(Syntax|Indentation|Name|Type|Attribute|Key|Index|Assertion|ZeroDivision|Value|NotImplemented"
        r"|UnboundLocal|Recursion|Overflow|FloatingPoint|Lookup|UnicodeDecode|UnicodeEncode|JSONDecode)Error\b"
        rf"|{_TYPE}\w*(Config|Mismatch|Usage|Validation|Argument|Attribute|Invalid|Compil)\w*(Error|Exception)(:|$)",
        _P,
        "type",
    ),
    # -- a connection that broke or was refused: a peer has ended, or what it was connected to
    Signature(
        "a connection was lost",
        rf"^(?!.*({_OUTSIDE}))({_TYPE}(Connection(Reset|Aborted|Refused)?|BrokenPipe|IncompleteRead)Error\b|EOFError:?$"
        r"|(\w+\.)*(TimeoutError|timeout): timed out$|(.*\W)?(broken ?pipe"
        r"|(connection|socket|channel|stream) ?(is |was |has been |unexpectedly )*"
        r"(closed|reset|lost|refused|aborted|broken|dropped|terminated|timed out)|closed (the|its|network) connection"
        r"|remote \w+ closed|(closed|reset|lost|left) by (its )?peer"
        r"|(peer|rank|node|neighbou?r|others)( \d+)? (is |was |has |are )*(closed|gone|lost|left|died|dead|down)"
        r"|lost (its |the |a )?(connection|peer)|\w*Connection\w*(Closed|Lost|Reset)\w*|java\.io\.EOFException"
        r"|No route to host|Network is unreachable|\[Errno (32|101|104|110|111|113)\]|ConnectException)(?!\w))",
        _N,
        "peer",
    ),
    # -- what other languages' runtimes say first: Go, Rust, Fortran (GNU, Intel), Julia, C++ and glibc, the JVM
    Signature(
        "an error of compiled code",
        r"^panic: |^fatal error: |^thread '.*'.* panicked at|Fortran runtime error|^forrtl: |AddressSanitizer"
        r"|^ERROR: (LoadError: )?\w+(Error|Exception)\b|stack smashing|\b(free|malloc|realloc)\(\): |double free"
        r"|MPI_ERR_\w+: |Fatal error in (internal_)?P?MPI",
        _P,
        "type",
    ),
    Signature(
        "an error of the JVM",
        r"^(Exception in thread|Caused by: )|^(java|javax|scala|org|com|io)\.[\w.$]+(Exception|Error)\b",
        _P,
        "type",
    ),
    Signature(
        "an error of a connection",
        rf"{_TYPE}\w*(Timeout|Connection|Network|Socket|Unavailable|Rpc)\w*(Error|Exception)(: |$)",
        _N,
        "peer",
    ),
    # -- how a process ended
    Signature("an error of C++ that nothing caught", r"^\s*what\(\): ", _P, "how"),
    Signature("C++ ended it", r"^(terminate|pure virtual method) called", _P, "how"),
    Signature(
        "a worker process died",
        r"DataLoader worker .*exited unexpectedly|BrokenProcessPool|TerminatedWorkerError",
        _C,
        "how",
    ),
    Signature(
        "a segmentation fault",
        _ended_by(11, "SIGSEGV", "Segmentation fault", "ERROR: Unexpected segmentation fault .*"),
        _P,
        "how",
    ),
    Signature(KILLED, _ended_by(9, "SIGKILL", "Killed", "OOM"), _C, "how"),
    Signature("a bus error", _ended_by(7, "SIGBUS", "Bus error"), _C, "how"),
    Signature("an illegal instruction", _ended_by(4, "SIGILL", "Illegal instruction"), _P, "how"),
    Signature("a floating-point exception", _ended_by(8, "SIGFPE", "Floating point exception"), _P, "how"),
    Signature("it aborted", rf"{_ended_by(6, 'SIGABRT', 'Aborted')}|MPI_ABORT was invoked", _P, "how"),
    Signature(
        "it was asked to end",
        rf"{_ended_by(15, 'SIGTERM', 'Terminated')}|{_ended_by(2, 'SIGINT', 'KeyboardInterrupt')}|CANCELLED AT",
        _T,
        "how",
    ),
    Signature(
        "what it started has failed",
        r"CalledProcessError|ChildFailedError|returned non-zero exit|process \d+ terminated with exit code"
        r"|Trials did not complete|TrainingFailedError",
        _P,
        "how",
    ),
    Signature(WRONG_ARGUMENTS, r"^usage: ", _P, "how"),
)
_COMPILED = tuple((re.compile(each.pattern, re.IGNORECASE), each) for each in SIGNATURES)
_PLACES = {each: place for place, each in enumerate(SIGNATURES)}
# An error of a type of Python's own, without more: most are the program's. An `OSError` may be anything's.
RAISED = Signature("an error that it raised", "", _P, "type")
_OF_PYTHON = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, OSError)
}
# What Ray and PyTorch add to a line: causes that it may have.
_GUESSES = re.compile(
    r"(There are some potential root causes|Some common causes include|This is most likely caused by).*"
)
# Advice that PyTorch prints below every CUDA error names other troubles than the one at hand.
_ADVICE = re.compile(
    r"CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|To enable traceback see|might be asynchronously reported"
)
# A warning of Python's: whatever it is about, the program goes on.
_WARNING = re.compile(r"^\S.*:\d+: \w*Warning: ")


def is_warning(line: str) -> bool:
    """Return whether a clean line is a warning of Python's; the line of code below it is printed with it."""
    return _WARNING.match(line) is not None


@lru_cache(maxsize=4096)
def signature_of(line: str) -> Signature | None:
    """Return the first signature that matches a clean line; None if none does."""
    if is_warning(line) or _ADVICE.search(line) or is_chatter(line):
        return None
    line = _GUESSES.sub("", line)
    return next((each for pattern, each in _COMPILED if pattern.search(line)), None)


def how_much(signature: Signature) -> tuple[int, int]:
    """Return the order of signatures by how much they say, most first; of two that only tell how, the earlier row."""
    return ("why", "type", "how", "peer").index(signature.says), _PLACES[signature] if signature.says == "how" else 0


def signature_of_error(line: str) -> Signature | None:
    """Return the signature of the line that names the exception of a traceback."""
    return signature_of(line) or (RAISED if line.partition(":")[0] in _OF_PYTHON else None)
