"""Each row of the table of signatures recognizes what the library, the driver or the kernel really writes."""

from __future__ import annotations

import pytest

from laggard.kvstore.errors import MEMORY_ADVICE, StateFullError
from laggard.resilience.reading.prefixes import clean_line
from laggard.resilience.reading.signatures import SIGNATURES, signature_of

# Of each row, lines as they are written. The programs that write them are named in the table.
EXAMPLES: dict[str, list[str]] = {
    "uncorrectable memory error of a GPU": [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable error",
    ],
    "illegal address on a GPU": [
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: misaligned address",
        "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Page not present.",
    ],
    "an assertion on a GPU before": [
        "RuntimeError: CUDA error: device-side assert triggered",
    ],
    "no memory left on a GPU": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`",
        "n1:81:99 [3] alloc.h:88 NCCL WARN Cuda failure 2 'out of memory'",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    ],
    "GPU missing or busy": [
        "RuntimeError: No CUDA GPUs: no CUDA-capable device is detected",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: TPU node-v3-32 is not HEALTHY yet.",
    ],
    "it does not fit its GPU or driver": [
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "AssertionError: Torch not compiled with CUDA enabled",
    ],
    "a GPU that does not start": [
        "RuntimeError: CUDA unknown error - this may be due to an incorrect environment",
    ],
    "GPU fell off the bus": [
        "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.",
        "HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang",
        "luajit: cuda runtime error (30) : unknown error at THCStorage.c:113",
    ],
    "error of a GPU or NVLink": [
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: CUDA error 802: system not yet initialized",
        "NVRM: Xid (PCI:0000:3b:00): 13, pid=4211, name=python, Graphics Exception",
    ],
    "hardware error of the machine": [
        "mce: [Hardware Error]: Machine check events logged",
    ],
    "a disk that fails, or a machine that is stuck": [
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "Buffer I/O error on dev sda1, logical block 8120",
        "blk_update_request: I/O error, dev sda, sector 8120",
        "INFO: task python:4211 blocked for more than 120 seconds.",
    ],
    "error of a GPU library": [
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
    ],
    "InfiniBand completion with an error": [
        "n7:812:1034 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.0.7<40313> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80:: hca mlx5_3",
        "n7: UCX ERROR RC QP 0x1: Transport retry count exceeded on mlx5_0:1",
        "The InfiniBand retry count between two MPI processes has been exceeded. RETRY EXCEEDED ERROR",
    ],
    "wrong use of NCCL": [
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
    ],
    "ranks differ in a collective": [
        "what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch "
        "in your code?",
        "RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (8), got (4))",
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has inconsistent "
        "4 params.",
        "RuntimeError: [1]: params[0] in this process with sizes [8, 4] appears not to match sizes of the same param "
        "in process 0.",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE, but "
        "Rank 1 is running collective: BROADCAST.",
        "[n1:00081] *** MPI_ERR_TRUNCATE: message truncated",
    ],
    "invalid use of NCCL": [
        "torch.distributed.DistBackendError: NCCL error, ncclInvalidUsage: invalid usage",
    ],
    "something is in use": [
        "torch.distributed.DistNetworkError: The server socket has failed (EADDRINUSE, code: -98)",
        "OSError: [Errno 98] Address already in use",
        "OSError: [Errno 16] Device or resource busy: '/dev/accel0'",
        "sqlite3.OperationalError: database is locked",
    ],
    "a node failed": [
        "The actor is dead because its node has died. Node Id: 812",
        "Task failed because the node it was running on is dead or unavailable. Node IP: 10.0.0.3",
        "srun: error: Node failure on n4",
    ],
    "a collective timed out": [
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600028 milliseconds before timing out.",
        "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv",
    ],
    "a peer was not reached": [
        "n7:812:1034 [0] include/socket.h:390 NCCL WARN Connect to 10.1.0.7<40313> failed : Connection refused",
        "socketStartConnect: Connect to 10.1.0.7<40313> failed : Software caused connection abort",
    ],
    "a peer was lost": [
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process.",
        "remote process exited or there was a network error",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43439. This is typical",
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "recvValue failed on SocketImpl(fd=3, addr=[n1]:4, remote=[n1]:29500): broken",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 3",
        "The client socket has timed out after 60000ms while trying to connect to (n1, 2)",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        '"message": "RendezvousConnectionError: The connection to the C10d store has failed."',
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "The actor is dead because its worker process has died. There are some potential root causes. (1) SIGKILL",
        "[n1:4211] *** MPI_ERR_PROC_FAILED: Process Failure",
        "[proxy:0:0@n1] HYDU_sock_write (lib/utils/sock.c:256): write error (Bad file descriptor)",
        "ORTE has lost communication with a remote daemon.",
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
        "grpc._channel._MultiThreadedRendezvous: <_MultiThreadedRendezvous of RPC: status = StatusCode.UNAVAILABLE",
        "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.2:8476",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Coordination service agent is in an error state",
        "Task 3 recorded a heartbeat timeout",
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: Task /job:jax_worker/task:3 heartbeat timeout",
        "\tstatus = StatusCode.UNAVAILABLE",
        "torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7 closing signal SIGTERM",
    ],
    "CUDA error inside NCCL": [
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    ],
    "a CUDA call is stuck": [
        "[PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress",
    ],
    "its engine has ended": [
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ],
    "it may not have what it asks for": [
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://hub.site/m",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
    ],
    "a service does not answer": [
        "socket.gaierror: [Errno -2] Name or service not known",
        "curl: (6) Could not resolve host: hub.site",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Connection refused",
        "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset'))",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.site/m",
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='hub.site', port=443): Max retries exceeded",
        "urllib.error.HTTPError: HTTP Error 429: Too Many Requests",
        "ConnectionError: Couldn't reach 'me/corpus' on the Hub",
        "OSError: We couldn't connect to 'https://hub.site' to load the files",
        "fsspec.exceptions.FSTimeoutError",
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
        "ssl.SSLError: [SSL: DECRYPTION_FAILED] bad record mac",
    ],
    "no memory left": [
        "RuntimeError: unable to write to file </torch_1>: insufficient shared memory (shm)",
        "Memory cgroup out of memory: Killed process 4211 (python) total-vm:81234kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been",
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "Ray killed it: the node is running low on memory",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array",
        "java.lang.OutOfMemoryError: GC overhead limit exceeded",
        "Container killed by YARN for exceeding memory limits. 20.0 GB of 20 GB physical memory used.",
        "srun: error: n1: task 0: Out Of Memory",
        "fatal error: runtime: out of memory",
    ],
    "no files, threads or processes left": [
        "OSError: [Errno 24] Too many open files",
        "RuntimeError: can't start new thread",
        "bash: fork: retry: Resource temporarily unavailable",
    ],
    "no room left for State": [
        str(StateFullError("127.0.0.1:5555", "its memory is used up", MEMORY_ADVICE)),
        str(StateFullError("/scratch/state", "no space left on its disk")),
    ],
    "the time is up": [
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO TIME LIMIT ***",
    ],
    "nothing is free": [
        "There are not enough slots available in the system to satisfy the 8 slots that were requested",
        "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
    ],
    "no space left on a disk": [
        "OSError: [Errno 122] Disk quota exceeded: '/home/me/checkpoint.pt'",
        "RuntimeError: basic_ios::clear: iostream error",
        "RuntimeError: [enforce fail] . PytorchStreamWriter failed writing file data/0",
        "OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'",
    ],
    "a file system that is gone": [
        "OSError: [Errno 116] Stale file handle: '/data/shard-00017.tar'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/bucket'",
    ],
    "a file system that may only be read": [
        "OSError: [Errno 30] Read-only file system: '/scratch/x'",
    ],
    "a damaged file": [
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "EOFError: Ran out of input",
    ],
    "it was ended from outside": [
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO PREEMPTION ***",
        "SignalException: Process 81 got signal: 1",
    ],
    "a failed assertion": [
        "../Indexing.cu:1553: block: [3,0,0], thread: [9,0,0] Assertion `i < n` failed.",
        "solver: mesh.c:12: refine: Assertion `n > 0' failed.",
        "Assertion failed: (n > 0), function refine, file mesh.c, line 12.",
        "Check failed: size == 3 (4 vs. 3)",
    ],
    "wrong arguments": [
        "usage: train.py [-h] --data DATA",
        "train.py: error: unrecognized arguments: --dat",
        "Error: No such option: --dat",
    ],
    "the numbers diverged": [
        "FloatingPointError: loss is nan at step 812",
        "grad_norm: inf",
    ],
    "it does not compile": [
        "RuntimeError: Error building extension 'fused_op'",
        "a.cu:3:1: error: expected ';'",
    ],
    "something that it needs is missing": [
        "ModuleNotFoundError: No module named 'flash_attn'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "bash: line 3: trainn: command not found",
        "bash: /opt/env/bin/python: No such file or directory",
        "slurmstepd: error: execve(): trainn: No such file or directory",
        "ImportError: libfoo.so: undefined symbol: _Z3foov",
    ],
    "an error in its code": [
        "KeyError: 'labels'",
        "json.decoder.ValueError: bad",
        "hydra.errors.ConfigCompositionException",
    ],
    "a connection was lost": [
        "ConnectionAbortedError",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "ConnectionError: rank 3 does not answer",
        "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 4 expected bytes",
        "TimeoutError: timed out",
        "OSError: [Errno 104] Connection reset by peer",
        "recv: Connection reset by peer",
        "rank 1: lost the peer, giving up",
        "RuntimeError: rank 3 has gone",
        "the others are gone",
        "websockets.exceptions.ConnectionClosedError: no close frame received or sent",
        "redis.exceptions.RedisError: Connection closed by server.",
        "Exception in thread main java.net.SocketException: Broken pipe (Write failed)",
        "panic: read tcp 10.0.0.1:52310->10.0.0.2:7000: read: connection reset by peer",
        'thread panicked: Os { code: 32, kind: BrokenPipe, message: "Broken pipe" }',
        "grpc: the client connection is closed; error: Socket closed",
        "the remote end closed the channel",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "OSError: [Errno 113] No route to host",
        "EOFError",
        "mine.RpcError: nobody answers",
        "asyncio.exceptions.TimeoutError",
    ],
    "an error of compiled code": [
        "panic: runtime error: invalid memory address or nil pointer dereference",
        "thread 'main' panicked at 'no shard 7', src/main.rs:4:5",
        "Fortran runtime error: End of file",
        "forrtl: severe (24): end-of-file during read",
        "ERROR: LoadError: UndefVarError: `x` not defined",
        "==81==ERROR: AddressSanitizer: heap-use-after-free on address 0x60",
        "malloc(): corrupted top size",
        'Exception in thread "main" java.lang.IllegalStateException: no shard 7',
    ],
    "an error of C++ that nothing caught": [
        "  what():  map::at",
    ],
    "C++ ended it": [
        "terminate called without an active exception",
    ],
    "a worker process died": [
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
        "RuntimeError: DataLoader worker (pid(s) 4211) exited unexpectedly",
    ],
    "it crashed": [
        "Segmentation fault (core dumped)",
        "./run.sh: line 6:  3470 Segmentation fault      (core dumped) ./solver",
        "srun: error: n1: task 3: Segmentation fault (core dumped)",
        "Fatal Python error: Segmentation fault",
        "failed (exitcode: -11) local_rank: 1",
        "RuntimeError: DataLoader worker (pid 7699) is killed by signal: Segmentation fault.",
        "ERROR: Unexpected segmentation fault encountered in worker.",
        "Illegal instruction (core dumped)",
        "Floating point exception (core dumped)",
    ],
    "it was killed": [
        "subprocess.CalledProcessError: Command '['x']' died with <Signals.SIGKILL: 9>.",
        "RuntimeError: DataLoader worker (pid 4211) is killed by signal: Killed.",
        "Killed",
        "./run.sh: line 6: 3470 Killed  python train.py",
        "mpirun noticed that process rank 1 with PID 81 on node n4 exited on signal 9 (Killed).",
        "train.py exits with return code = -9",
        "srun: error: n1: task 3: Exited with exit code 137",
    ],
    "a bus error": [
        "Bus error (core dumped)",
    ],
    "it aborted": [
        "Aborted (core dumped)",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    ],
    "it was asked to end": [
        "KeyboardInterrupt",
        "srun: error: n1: tasks 0-3: Terminated",
    ],
    "what it started has failed": [
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 1",
        "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.",
    ],
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in EXAMPLES.items() for line in lines])
def test_a_line_is_recognized(name: str, line: str) -> None:
    found = signature_of(line)
    assert found is not None
    assert found.name == name


def test_every_row_has_an_example() -> None:
    assert EXAMPLES.keys() == {signature.name for signature in SIGNATURES}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 812: loss 2.314, grad norm 0.81, 14.2 samples/s",
        "loss scale: infinite horizon off",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "saved a checkpoint: no error encountered",
        "Traceback (most recent call last):",
        "RuntimeError: the bananas are gone",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "wandb: Network error (ConnectionError), entering retry loop.",
        "n7:812:1034 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "I0512 10:00:01.123456 8120 loader.cc:12] Connection refused, trying again",
        "2026-05-12T04:56:11 - 1 - trainer.save - save.py:246 - INFO :: Connection refused, trying again",
        "26/05/12 10:00:01 INFO Executor: lost task 3, Connection refused",
        "Validation: 0.31",
        "trainer.config: batch 8",
        "step 500: validation error 0.31, 502 samples/s, code 7",
        "WARNING Sequence group 0 is preempted by PreemptionMode.RECOMPUTE",
        "clocks are throttled, this may exceed the memory bandwidth",
        "Error: Missing shard 7, the next one is read",
        "train error: 0.31, test error: 0.35",
        "killed time while the shard was read",
        "peak memory 71.2 GiB of 79.1 GiB",
        "/home/me/train.py:7: RuntimeWarning: grad norm is nan, the step is skipped",
    ],
)
def test_what_a_healthy_program_writes_is_not(line: str) -> None:
    assert signature_of(line) is None


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("[rank5]: KeyError: 'x'", "KeyError: 'x'"),
        ("\x1b[36m(f pid=812, ip=10.0.0.7)\x1b[0m KeyError: 'x'", "KeyError: 'x'"),
        ("2026-11-22 13:31:21,081 KeyError: 'x'", "KeyError: 'x'"),
        ("[default0]:[rank0]: KeyError: 'x'\n", "KeyError: 'x'"),
        ("KeyError: 'x'", "KeyError: 'x'"),
    ],
)
def test_a_line_is_read_without_what_launchers_put_before_it(line: str, clean: str) -> None:
    assert clean_line(line) == clean
