"""What a program writes when it dies of something known: a table, looked through line by line. Pure.

A signature says what kind of trouble a line is about, and how much the line says. One that names a reason counts before
the bare type of an exception, that before what only tells how a process ended. A **cascade** is written by a process
that noticed the end of another one (a closed connection, a collective that timed out): it never explains a failure
while any process wrote something that is not a cascade, however early it came.

The patterns were collected from the sources and the manuals of what the rows name. ``tests/unit/test_signatures.py``
has lines of each.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from laggard.resilience.reading.prefixes import is_chatter

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
    kind: Kind  # what kind of trouble it is
    says: Says = "why"  # how much it says
    is_proof: bool = False  # whether hardly anything but a bad node is a reason to write it
    is_shared: bool = False  # whether it is about what ranks gave each other, so that it is no single one's


# What connects with a service outside of the job.
_OUTSIDE = r"https?://|HTTPS?Connection|requests\.|urllib|botocore|aiohttp"
# The name of an exception of Python or the JVM, with its module or package: what an error line begins with.
_TYPE = r"^(?:Caused by: |Exception in thread \S+ )?(?:\w+\.)*"
# The name of the rows of programs that do not understand their arguments: these are ended.
WRONG_ARGUMENTS = "wrong arguments"
# Of a process that SIGKILL ended: what most often sends it is the kernel, for want of memory.
KILLED = "it was killed"
_CRASH = "Segmentation fault|Illegal instruction|Floating point exception|ERROR: Unexpected segmentation fault .*"


def _ended_by(number: str, name: str, said: str) -> str:
    """Return a pattern of the ways in which shells, schedulers and launchers say that a signal ended a process."""
    shells = "|".join(str(128 + int(each)) for each in number.split("|"))
    code = rf"(exit|return|status)\w*( ?code| status)?[:= ]*\(?(-({number})|{shells})\b"
    told = rf"\bsignal:? ({number})\b|{code}|\b{name}\b"
    return rf"{told}|^(.*[:\d] +)?({said})( .*core dumped.*| \(core dumped\))?( {{2,}}.*)?$|signal: ({said})"


# The kind; how much it says, if not why, or that it is proof of a bad node or shared by ranks; what it is: regular
# expression, looked for in each line without regard to case.
_ROWS: Mapping[str, str] = {
    # -- devices: the CUDA runtime's texts, the driver's names (CUDA_ERROR_...), HIP's; and the kernel's lines
    "hardware proof: uncorrectable memory error of a GPU": r"uncorrectable (ECC|memory) error|ECC_?(un|Not)correctable",
    "program: illegal address on a GPU": r"illegal (memory access|instruction was)|misaligned address|ILLEGAL_ADDRESS"
    r"|Memory access fault by GPU|MEMORY_APERTURE_VIOLATION",
    "program how: an assertion on a GPU before": r"device-side assert triggered|CUDA_ERROR_ASSERT",
    "capacity: no memory left on a GPU": r"(CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory"
    r"|STATUS_ALLOC_FAILED|OutOfMemoryError: (CUDA|HIP)|(ERROR_|hipError|failure.*)out_?( of )?memory"
    r"|ErrorMemoryAllocation|RESOURCE_?EXHAUSTED(Error)?: |OOM when allocating"
    r"|(cuda|cublas|gpu|device)\b.{0,40}\bout of memory|No available memory for the cache|stored in KV cache"
    r"|exceed(s|ed) .*hbm|out of memory in memory space",
    "hardware: GPU missing or busy": r"no CUDA-capable device|devices?( is| are|\(s\) is/are)? busy or unavailable"
    r"|CUDA_ERROR_NO_DEVICE|communicate with the NVIDIA driver|Driver/library version mismatch|nvml error"
    r"|Unable to determine the device handle|Failed to initialize NVML: (?!Driver Not)|No devices were found"
    r"|nvidia-container-cli|\bTPU\b.*(not |UN)HEALTHY",
    "program: it does not fit its GPU or driver": r"invalid device ordinal|no kernel image is available"
    r"|no ?binary ?for|driver version is insufficient|driver on your system|not compiled with CUDA"
    r"|unsupported toolchain|No CUDA GPUs are available",
    "unknown: a GPU that does not start": r"CUDA unknown error|CUDA driver initialization failed",
    "hardware proof: GPU fell off the bus": r"fallen off the bus|GPU[_ ]is[_ ]lost|HW Exception by GPU|GPU Hang"
    r"|CUDA error: (unknown error|hardware)|cuda runtime error \(30\)",
    "hardware: error of a GPU or NVLink": r"(unspecified|ERROR)[_ ]launch[_ ](failure|FAILED|TIMEOUT)|launch timed out"
    r"|uncorrectable NVLink|Invalid access of peer GPU|system not yet initialized|SYSTEM_NOT_READY|NVRM: Xid \(",
    "hardware proof: hardware error of the machine": r"mce: \[Hardware Error\]|EDAC .*\bUE\b|Memory failure:"
    r"|AER: .*(Uncorrect|Fatal)",
    "hardware: a disk that fails, or a machine that is stuck": r"Remounting filesystem read-only|Buffer I/O error"
    r"|I/O error, dev|nvme.*timeout|blocked for more than \d+ seconds|soft lockup|rcu.*stall",
    "program how: error of a GPU library": r"\b(CUDNN|CUBLAS|CUFFT|CUSOLVER|MIOPEN)(_?STATUS_?\w+| error| failure)",
    # -- communication: NCCL, PyTorch, Gloo, UCX and libfabric, Ray, MPI, gRPC
    "network: InfiniBand completion with an error": r"Got completion from peer \S+ with|retry (count(er)? )?exceeded"
    r"|got completion with error|ibv_\w+ failed|Got async event.*(port|fatal|error)",
    "program: wrong use of NCCL": r"Duplicate GPU detected|no socket interface found|Tensors must be (CUDA|contiguous)",
    "program shared: ranks differ in a collective": r"Detected mismatch between collectives"
    r"|distributed collective mismatch|op\.preamble\.length|ProcessGroup\w+::\w+: invalid tensor (size|type)"
    r"|expects same model across all ranks|not to match (sizes|strides) of the same param|MPI_ERR_TRUNCATE"
    r"|Message truncated|Mismatched (allreduce|allgather|broadcast|reducescatter|alltoall)",
    "program how: invalid use of NCCL": r"ncclInvalid|invalid usage|ncclInternalError|NCCL error.*internal error",
    "transient: something is in use": r"EADDRINUSE|Address already in use|errno: 98\b|Device or resource busy"
    r"|\[Errno 16\]|already in use by|unable to lock file|database is locked|Text file busy",
    "hardware: a node failed": r"Node failure on|DUE TO NODE FAILURE|\bNODE_?FAIL\b|NodeNotReady|NodeLost"
    r"|its node has died|node it was running on is dead|node has crashed|missed too many heartbeats"
    r"|node .*(was|has been) (terminated|marked dead)|\bnodes? \S+ (is |are )?(not responding|down)\b",
    "network peer: a collective timed out": r"collective operation timeout|collective timeout|monitoredBarrier"
    r"|detected by watchdog at work|flight recorder dump signal|Timed out waiting \d+ms for|barrier timed out",
    "network peer: a peer was not reached": r"NCCL WARN .*(failed ?: (Connection|No route|Software)|closed by remote"
    r"|timed out)|socket\w+: .* failed :|Socket error|failed to connect to .*(peer|rank)",
    "network peer: a peer was lost": r"ncclRemoteError|remote process exited|ncclSystemError|unhandled system error"
    r"|communicator was aborted|DistBackendError|gloo/transport/\w+/(?!device)|connectFullMesh failed|recvValue failed"
    r"|sendBytes failed|failed to recv, got 0 bytes|wait timeout after \d+ms, keys|store->get\("
    r"|Did the remote server shutdown|Dist(Store|Network)Error|Rendezvous(Connection|Closed|Timeout|State)Error"
    r"|client socket has (timed out|failed to connect to any)|connect\(\) timed out|waiting for clients"
    r"|store.based barrier|initializing process group in store|RuntimeError: Socket Timeout"
    r"|(ActorDied|ActorUnavailable|RayActor|WorkerCrashed|OwnerDied|NodeDied|LocalRayletDied)Error"
    r"|worker (process has )?died|raylet (failed|died)|lost communication with|MPIX?_ERR_(PROC_FAILED|REVOKED)"
    r"|\b(ORTE|PRTE) .*lost|\bHYD[TU]?_\w+|mca_btl_tcp\w+: .*failed|MPIDI_\w+.*Communication error"
    r"|unable to complete a TCP connection|HorovodInternalError|Horovod has been shut down"
    r"|StatusCode\.(UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED)|\b(UNAVAILABLE|DEADLINE_EXCEEDED): |\bUnavailableError"
    r"|distributed service detected fatal|another task died|failed to connect to all addresses"
    r"|coordination service.*(error state|stopped|unhealthy|heartbeat|disconnect|shut ?down)|heartbeat time(d )?out"
    r"|ExecutorLostFailure|FetchFailed|Sending process \d+ closing signal|Signal 15 \(SIGTERM\) received",
    "unknown how: CUDA error inside NCCL": r"unhandled ?cuda ?error",
    "unknown how: a CUDA call is stuck": r"watchdog got stuck for \d+ seconds",
    "unknown peer: its engine has ended": r"EngineDead|Engine core init\w+ failed|Background loop has errored"
    r"|WorkerProc init\w+ failed",
    # -- services outside of the job: urllib3, requests, botocore, gRPC clients, name servers
    "program: it may not have what it asks for": r"\b40[0134] Client Error|HTTP ?Error 40[0134]"
    r"|\b403\b.*Forbidden|(Repository|Entry|Revision)NotFound|GatedRepo|Unauthorized|Access ?Denied|NoCredentials"
    r"|NoSuch(Bucket|Key)|InvalidAccessKey|authentication failed|Permission denied \(publickey|Err(or)?ImagePull"
    r"|Host key verification failed|pull access denied|Invalid account|is not a (local folder|valid model identifier)",
    "transient: a service does not answer": r"name resolution|NameResolutionError"
    r"|(Name or service|nodename .*) not known|getaddrinfo|gaierror|Could not resolve host|UnknownHost|no such host"
    r"|No address associated with hostname|HTTPS?ConnectionPool|Max retries exceeded"
    r"|\b50[0234] (Server|Internal|Bad|Service|Gateway|Backend)"
    r"|(HTTP ?Error|status|code|HTTP/[\d.]+)\W+(429|50[0234])\b|Too Many Requests|Bad Gateway|Gateway Time-?out"
    r"|Service ?(\w+ )?Unavailable|SlowDown|Internal Server Error|(Request|Read|Connect)Timeout"
    r"|EndpointConnectionError|Throttl(ing|ed)(Error|Exception)|IncompleteRead[(:]|ChunkedEncoding|RemoteDisconnected"
    r"|SSLError|SSL: |Rate ?Limit\w*( reached|Error|Exceeded)|CommError|LocalEntryNotFound"
    r"|n[o']t (reach |connect to '?https?:)|reached .*rate limit"
    r"|(Server|Database|Operational)\w*Error: .*(connect|server|timed? ?out)|curl(: \(\d+\)| returned error)|^(aiohttp"
    r"|fsspec|httpx|httpcore|requests|urllib3|boto\w*|s3fs|gcsfs|google|azure|huggingface_hub|wandb|pymongo|redis"
    r"|openai)\.[\w.]*(Timeout|Connect|Disconnect|Unavailable|Payload|Server|Protocol|Retry)\w*(:|$)",
    # -- memory, disks and file systems; what schedulers and operators do
    "capacity: no memory left": r"(insufficient|out of) shared memory|creating shared memory"
    r"|/dev/shm.*(fail|error|extend)|failed to extend /dev/shm|oom_kill [1-9]|memory: Killed process|\boom[_-]kill\b"
    r"|^(\w+\.)*\w*MemoryError\b|OOM ?Killed|low on (resource: )?(memory|ephemeral)|memory pressure|OutOfMemoryError"
    r"|can('t|not) allocate memory|bad_?alloc|task \d\S*: Out Of Memory|exceed(ed|ing|s)? .*memory limit"
    r"|memory.{0,20} exceeded|not enough memory: you tried|runtime: out of memory|TERM_MEMLIMIT"
    r"|virtual memory exhausted|Unable to allocate \d|insufficient virtual",
    "capacity: no files, threads or processes left": r"Too many open files|\[Errno 24\]|received 0 items of ancdata"
    r"|can't start new thread|pthread_create.* failed|unable to create .*thread|fork: (retry|Cannot)"
    r"|Resource temporarily unavailable",
    "capacity: no room left for State": r"no room left for State at",
    "capacity: the time is up": r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime .*exceeded|time limit (reached|exceeded)"
    r"|(exceeded|reached) .*(wall ?time|time limit)",
    "capacity: nothing is free": r"not enough slots|\bInsufficient (nvidia|cpu|memory|capacity)|nodes are available: "
    r"|cannot be scheduled|node configuration is not available|Requested nodes are busy|QOSMax|AssocGrp"
    r"|requested than permitted|RESOURCE_POOL_EXHAUSTED|InsufficientInstanceCapacity|does not have enough resources",
    "capacity: no space left on a disk": r"No space left on device|\[Errno (28|122)\]|OutOfDiskError|ENOSPC"
    r"|enough disk space|disk (is )?full|quota (was |is |has been )?exceeded|over quota|PytorchStreamWriter failed"
    r"|basic_ios::clear: iostream error|unexpected pos \d+ vs",
    "transient: a file system that is gone": r"Stale (NFS )?file handle|\[Errno (116|5|107|108|121)\]"
    r"|transport endpoint|Input/output error|Remote I/O error|nfs: server \S+ not responding",
    "unknown: a file system that may only be read": r"Read-only file system|\[Errno 30\]",
    "unknown: a damaged file": r"failed finding central directory|PytorchStreamReader failed|archive is corrupted"
    r"|Error while deserializing|HeaderTooLarge|IncompleteBuffer|pickle data was truncated|Ran out of input|BadZipFile"
    r"|unexpected EOF|(file|data) (is|was|may be) (truncated|corrupt)|DataLossError|Consistency check failed"
    r"|checksum mismatch",
    "transient: it was ended from outside": r"DUE TO (PREEMPTION|JOB REQUEUE)|TERM_(OWNER|PREEMPT)|CANCELLED by"
    r"|Hangup$|SIGHUP|signal:? 1\b|\b(job|node|instance|pod|vm|tpu)\b.{0,40}\bpreempted\b|spot (interrupt|terminat)"
    r"|termination is imminent",
    # -- the program
    "program: a failed assertion": r"Assertion .* failed|^Assertion failed|\bCheck failed: ",
    f"program: {WRONG_ARGUMENTS}": r"(^|: )error: (unrecognized arg|the following arg|argument \S+: )"
    r"|unrecognized option|^Error: (No such (option|command)|Invalid value for)|Could not override",
    "program: the numbers diverged": r"\b(loss|grad(ient)?([ _]norm)?)\W{0,3}(is )?(nan|inf)\b|non-finite",
    "program: it does not compile": r"Error building extension|fatal error: .*: No such file|undefined reference"
    r"|nvcc fatal|^\S+:\d+:\d+: (fatal )?error: ",
    "program type: something that it needs is missing": rf"{_TYPE}(Import|ModuleNotFound|FileNotFound|Permission"
    r"|IsADirectory|NotADirectory|NoClassDefFound)Error\b|cannot open shared object|undefined symbol"
    r"|version `\S+' not found"
    r"|^(?!.*: cd: ).*: (command not found|No such file or directory|Permission denied|not found)$|can't open file"
    r"|No module named|error: (execve|chdir)\(|ClassNotFoundException",
    "program type: an error in its code": rf"{_TYPE}(Syntax|Indentation|Name|Type|Attribute|Key|Index|Assertion"
    r"|ZeroDivision|Value|NotImplemented|UnboundLocal|Recursion|Overflow|FloatingPoint|Lookup|UnicodeDecode"
    r"|UnicodeEncode|JSONDecode)Error\b"
    rf"|{_TYPE}\w*(Config|Mismatch|Usage|Validation|Argument|Attribute|Invalid|Compil)\w*(Error|Exception)(:|$)",
    # -- a connection that broke or was refused: a peer has ended, or what it was connected to
    "network peer: a connection was lost": rf"^(?!.*({_OUTSIDE}))({_TYPE}(Connection(Reset|Aborted|Refused)?"
    r"|BrokenPipe|IncompleteRead)Error\b|EOFError:?$|(\w+\.)*(TimeoutError|timeout): timed out$|(.*\W)?(broken ?pipe"
    r"|(connection|socket|channel|stream) ?(is |was |has been |unexpectedly )*(closed|reset|lost|refused|aborted"
    r"|broken|dropped|terminated|timed out)|closed (the|its|network) connection|remote \w+ closed|(closed|reset|lost"
    r"|left) by (its )?peer|(peer|rank|node|neighbou?r|others)( \d+)? (is |was |has |are )*(closed|gone|lost|left|died"
    r"|dead|down)|lost (its |the |a )?(connection|peer)|\w*Connection\w*(Closed|Lost|Reset)\w*|java\.io\.EOFException"
    r"|No route to host|Network is unreachable|\[Errno (32|101|104|110|111|113)\]|ConnectException)(?!\w))"
    rf"|{_TYPE}\w*(Timeout|Connection|Network|Socket|Unavailable|Rpc)\w*(Error|Exception)(: |$)",
    # -- what other languages' runtimes say first: Go, Rust, Fortran (GNU, Intel), Julia, C++ and glibc, the JVM
    "program type: an error of compiled code": r"^panic: |^fatal error: |^thread '.*'.* panicked at"
    r"|Fortran runtime error|^forrtl: |AddressSanitizer|^ERROR: (LoadError: )?\w+(Error|Exception)\b|stack smashing"
    r"|double free|\b(free|malloc|realloc)\(\): |MPI_ERR_\w+: |Fatal error in (internal_)?P?MPI"
    r"|^(Exception in thread|Caused by: )|^(java|javax|scala|org|com|io)\.[\w.$]+(Exception|Error)\b",
    # -- how a process ended
    "program how: an error of C++ that nothing caught": r"^\s*what\(\): ",
    "program how: C++ ended it": r"^(terminate|pure virtual method) called",
    "capacity how: a worker process died": r"DataLoader worker .*exited unexpectedly|BrokenProcessPool"
    r"|TerminatedWorkerError",
    "program how: it crashed": _ended_by("11|4|8", "SIG(SEGV|ILL|FPE)", _CRASH),
    f"capacity how: {KILLED}": _ended_by("9", "SIGKILL", "Killed|OOM"),
    "capacity how: a bus error": _ended_by("7", "SIGBUS", "Bus error"),
    "program how: it aborted": rf"{_ended_by('6', 'SIGABRT', 'Aborted')}|MPI_ABORT was invoked",
    "transient how: it was asked to end": rf"{_ended_by('15', 'SIGTERM', 'Terminated')}|CANCELLED AT"
    rf"|{_ended_by('2', 'SIGINT', 'KeyboardInterrupt')}",
    "program how: what it started has failed": r"CalledProcessError|ChildFailedError|returned non-zero exit"
    r"|process \d+ terminated with exit code|Trials did not complete|TrainingFailedError",
    f"program how: {WRONG_ARGUMENTS}": r"^usage: ",
}


def _signature(title: str) -> Signature:
    what, _, name = title.partition(": ")
    kind, _, says = what.partition(" ")
    is_proof, is_shared = says == "proof", says == "shared"
    how_much = "why" if is_proof or is_shared else says or "why"
    return Signature(name, cast(Kind, kind), cast(Says, how_much), is_proof, is_shared)


_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), _signature(title)) for title, pattern in _ROWS.items())
SIGNATURES = tuple(each for _, each in _COMPILED)
_PLACES = {each: place for place, each in enumerate(SIGNATURES)}
# An error of a type of Python's own, without more: most are the program's. An `OSError` may be anything's.
_RAISED = Signature("an error that it raised", "program", "type")
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
    return signature_of(line) or (_RAISED if line.partition(":")[0] in _OF_PYTHON else None)
