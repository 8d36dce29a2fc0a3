"""Each row of the table of signatures recognizes what the library, the driver or the kernel really writes."""

from __future__ import annotations

import pytest

from laggard.kvstore.errors import MEMORY_ADVICE, StateFullError
from laggard.resilience.decision.signatures import SIGNATURES, clean_line, signature_of

EXAMPLES = [
    ("uncorrectable memory error of a GPU", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("illegal address on a GPU", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("illegal address on a GPU", "RuntimeError: CUDA error: misaligned address"),
    ("assertion on a GPU", "RuntimeError: CUDA error: device-side assert triggered"),
    ("assertion on a GPU", "../Indexing.cu:1553: block: [3,0,0], thread: [9,0,0] Assertion `i < n` failed."),
    (
        "no memory left on a GPU",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    ),
    ("no memory left on a GPU", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`"),
    ("launch failure on a GPU", "RuntimeError: CUDA error: unspecified launch failure"),
    ("GPU missing or busy", "RuntimeError: CUDA error: invalid device ordinal"),
    ("GPU missing or busy", "RuntimeError: No CUDA GPUs: no CUDA-capable device is detected"),
    ("GPU missing or busy", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("NVLink error", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("fabric manager not ready", "RuntimeError: CUDA error 802: system not yet initialized"),
    ("error of a GPU library", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ("error of a GPU library", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    ("GPU fell off the bus", "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus."),
    (
        "InfiniBand completion with an error",
        "n7:812:1034 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.0.7<40313> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80:: hca mlx5_3",
    ),
    ("wrong use of NCCL", "torch.distributed.DistBackendError: NCCL error, ncclInvalidUsage: invalid usage"),
    ("a peer was lost (NCCL)", "ncclRemoteError: A call failed possibly due to a network error or a remote process."),
    ("a peer was lost (NCCL)", "remote process exited or there was a network error"),
    ("CUDA error inside NCCL", "ncclUnhandledCudaError: Call to CUDA function failed."),
    (
        "a collective timed out",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600028 milliseconds before timing out.",
    ),
    ("a collective timed out", "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"),
    ("a CUDA call is stuck", "[PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress"),
    (
        "a peer was lost (Gloo)",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43439. This is typical",
    ),
    ("the rendezvous lost its store", "recvValue failed on SocketImpl(fd=3, addr=[n1]:4, remote=[n1]:29500): broken"),
    (
        "no connection to the rendezvous",
        "The client socket has timed out after 60000ms while trying to connect to (n1, 2)",
    ),
    ("a port is in use", "torch.distributed.DistNetworkError: The server socket has failed (EADDRINUSE, code: -98)"),
    (
        "a Ray process was lost",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ),
    (
        "torchrun ended the others",
        "torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7 closing signal SIGTERM",
    ),
    *(
        ("a peer was lost", line)
        for line in (
            "torch.distributed.DistNetworkError: Connection reset by peer",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77",
            "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.",
            "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
            "[n1:4211] *** MPI_ERR_PROC_FAILED: Process Failure",
            "ORTE has lost communication with a remote daemon.",
            "[proxy:0:0@n1] HYDU_sock_write (lib/utils/sock.c:256): write error (Bad file descriptor)",
            "grpc._channel._MultiThreadedRendezvous: <_MultiThreadedRendezvous of RPC: status = StatusCode.UNAVAILABLE",
            "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.2:8476",
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Coordination service agent is in an error state",
            "Task 3 recorded a heartbeat timeout",
            "Terminating process because the JAX distributed service detected fatal errors.",
        )
    ),
    *(
        ("a connection was lost", line)
        for line in (
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "ConnectionAbortedError",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "ConnectionError: rank 3 does not answer",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "EOFError",
            "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 4 expected bytes",
            "TimeoutError: timed out",
            "OSError: [Errno 104] Connection reset by peer",
            "recv: Connection reset by peer",
            "rank 1: lost the peer, giving up",
            "websockets.exceptions.ConnectionClosedError: no close frame received or sent",
            "redis.exceptions.RedisError: Connection closed by server.",
            "Exception in thread main java.net.SocketException: Broken pipe (Write failed)",
            "panic: read tcp 10.0.0.1:52310->10.0.0.2:7000: read: connection reset by peer",
            'thread panicked: Os { code: 32, kind: BrokenPipe, message: "Broken pipe" }',
            "grpc: the client connection is closed; error: Socket closed",
            "the remote end closed the channel",
        )
    ),
    ("no shared memory left", "RuntimeError: unable to write to file </torch_1>: insufficient shared memory (shm)"),
    ("a DataLoader worker died", "RuntimeError: DataLoader worker (pid 4211) is killed by signal: Killed."),
    ("no memory left", "Memory cgroup out of memory: Killed process 4211 (python) total-vm:81234kB"),
    ("no memory left", "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been"),
    ("no memory left", "MemoryError"),
    ("no room left for State", str(StateFullError("127.0.0.1:5555", "its memory is used up", MEMORY_ADVICE))),
    ("no room left for State", str(StateFullError("/scratch/state", "no space left on its disk"))),
    ("no memory left", "numpy.core._exceptions._ArrayMemoryError: OSError: [Errno 12] Cannot allocate memory"),
    ("no memory left", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("no memory left", "Ray killed it: the node is running low on memory"),
    ("no memory left", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array"),
    ("a quota is used up", "OSError: [Errno 122] Disk quota exceeded: '/home/me/checkpoint.pt'"),
    ("a file could not be written", "RuntimeError: basic_ios::clear: iostream error"),
    ("a file could not be written", "RuntimeError: [enforce fail] . PytorchStreamWriter failed writing file data/0"),
    ("no space left on a disk", "OSError: [Errno 28] No space left on device: '/scratch/ckpt.pt'"),
    ("a file system that is gone", "OSError: [Errno 116] Stale file handle: '/data/shard-00017.tar'"),
    ("a failing disk", "OSError: [Errno 30] Read-only file system: '/scratch/x'"),
    ("Xid error of a GPU", "NVRM: Xid (PCI:0000:3b:00): 13, pid=4211, name=python, Graphics Exception"),
    ("hardware error of the machine", "mce: [Hardware Error]: Machine check events logged"),
    ("the machine is stuck", "INFO: task python:4211 blocked for more than 120 seconds."),
    ("an error in its code", "KeyError: 'labels'"),
    ("an error in its code", "json.decoder.ValueError: bad"),
    ("something that it needs is missing", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("wrong arguments", "usage: train.py [-h] --data DATA"),
    ("the numbers diverged", "FloatingPointError: loss is nan at step 812"),
    ("the numbers diverged", "grad_norm: inf"),
]


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_a_line_is_recognized(name: str, line: str) -> None:
    found = signature_of(line)
    assert found is not None
    assert found.name == name


def test_every_row_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == {signature.name for signature in SIGNATURES}


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
        "EOFError: Ran out of input",  # of a file
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "wandb: Network error (ConnectionError), entering retry loop.",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Connection refused",
        "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset'))",
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
