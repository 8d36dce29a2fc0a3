"""Which line of what a failed job printed is quoted, and of which kind it is, in the formats of many programs."""

from __future__ import annotations

import textwrap

import pytest

from laggard.resilience.decision.failure import explain
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.reading.error_output import complaints_of
from laggard.resilience.reading.prefixes import MAX_LINE, clean_line

TRACE = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in step\n    run()\n'


def behind(prefix: str, error: str) -> str:
    """Return a traceback behind a prefix."""
    return "".join(f"{prefix}{line}\n" for line in f"{TRACE}{error}".splitlines())


# What is before each of these is quoted without its prefix.
PREFIXES = {
    "pdsh": "node17: ",
    "a host without a number": "trainer-a: ",
    "brackets that nobody knows": "[trainer/a] ",
    "docker compose": "trainer-a  | ",
    "pdsh, an address": "10.4.0.17: ",
    "mpirun": "[1,17]<stderr>:",
    "mpirun of Open MPI 5": "[1,17]<stderr>: ",
    "srun --label": "17: ",
    "Lightning": "[rank: 3] ",
    "horovodrun": "[3]<stderr>:",
    "horovodrun with the time": "Fri Sep 11 07:07:20 2026[3]<stderr>:",
    "torchrun --tee": "[default3]:[rank11]: ",
    "torchrun on several hosts by pdsh": "gpu-b-4: [rank11]: ",
    "Ray": "(RayTrainWorker pid=8120, ip=10.4.0.17) ",
    "Ray of old": "(pid=8120) ",
    "vLLM": "(EngineCore_DP0 pid=8120) ERROR 05-12 10:00:01 [core.py:700] ",
    "vLLM of old": "ERROR 05-12 10:00:01 engine.py:389] ",
    "absl": "E0512 10:00:01.123456   81200 trainer.py:712] ",
    "absl of today": "E0000 00:00:1715498963.019816  583764 trainer.cc:444] ",
    "TensorFlow": "2026-05-12 10:00:01.123456: E tensorflow/core/framework/op_kernel.cc:1745] ",
    "PyTorch in C++": "[rank11]:[E512 10:00:01.123456789 ProcessGroupNCCL.cpp:616] ",
    "ISO 8601": "2026-05-12T10:00:01.123Z ",
    "ISO 8601 with a zone": "2026-05-12T10:00:01,123+02:00 ",
    "logging": "2026-05-12 10:00:01,123 - trainer.main - ERROR - ",
    "basicConfig": "ERROR:trainer.main:",
    "DeepSpeed": "[2026-05-12 10:00:01,123] [ERROR] [engine.py:88:step] ",
    "detectron2": "ERROR [05/12 10:00:01 d2.engine]: ",
    "loguru": "2026-05-12 10:00:01.123 | ERROR    | __main__:step:15 - ",
    "journald": "May 12 10:00:01 node17 train[8120]: ",
    "a container's log": "2026-05-12T10:00:01.123456789Z stderr F ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("error", ["KeyError: 'labels'", "RuntimeError: CUDA error: unspecified launch failure"])
def test_a_traceback_is_read_behind_any_prefix(prefix: str, error: str) -> None:
    failure = explain([ended(f"{prefix}step 7\n{behind(prefix, error)}all ranks end\n")], {})
    assert failure.quote == error
    assert failure.fingerprint.endswith("< train.py:step")


def ended(text: str) -> ProcessEnd:
    return ProcessEnd("node1", 4211, 1, 1e9, 700.0, tuple(textwrap.dedent(text).strip("\n").splitlines()))


# What was printed; what is quoted of it; its kind.
OUTPUTS = {
    "the raised one of a chain": (
        f"""
{TRACE}KeyError: 'hidden'

During handling of the above exception, another exception occurred:

{TRACE}mine.ConfigError: the model has no field 'hidden'
""",
        "mine.ConfigError: the model has no field 'hidden'",
        "program",
    ),
    "the reason in a chain": (
        f"""
{TRACE}OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

{TRACE}mine.SaveError: step 7 was not saved
""",
        "mine.SaveError: step 7 was not saved",
        "capacity",
    ),
    "the reason in a chain, when a library raises what follows": (
        f"""
{TRACE}TimeoutError: The client socket has timed out after 60s while trying to connect to (10.0.0.1, 1234).

The above exception was the direct cause of the following exception:

{TRACE}  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 3, in run
    raise
mine.RendezvousError: The connection has failed. See inner exception for details.
""",
        "TimeoutError: The client socket has timed out after 60s",
        "network",
    ),
    "a peer's end first, its consequence last": (
        f"""
{TRACE}ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

{TRACE}AttributeError: 'NoneType' object has no attribute 'close'
""",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "network",
    ),
    "an error of its own, then a peer's while it cleans up": (
        f"""
{TRACE}ValueError: shapes (3, 4) and (5,) do not fit

During handling of the above exception, another exception occurred:

{TRACE}RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4343
""",
        "ValueError: shapes (3, 4) and (5,) do not fit",
        "program",
    ),
    "ranks without marks: one error, the others' closed connections": (
        f"""
{TRACE}ValueError: shapes (3, 4) and (5,) do not fit
{TRACE}RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4343
{TRACE}RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4345
""",
        "ValueError: shapes (3, 4) and (5,) do not fit",
        "program",
    ),
    "an error at exit": (
        f"""
{TRACE}KeyError: 'labels'
Error in atexit._run_exitfuncs:
{TRACE}OSError: [Errno 28] No space left on device
""",
        "KeyError: 'labels'",
        "program",
    ),
    "an error of multiprocessing as it ends": (
        f"""
{TRACE}KeyError: 'labels'
Traceback (most recent call last):
  File "/env/lib/python3.11/multiprocessing/util.py", line 303, in _run_finalizers
    finalizer()
OSError: [Errno 16] Device or resource busy: '.nfs0000812'
""",
        "KeyError: 'labels'",
        "program",
    ),
    "an error that Python ignored": (
        f"""
{TRACE}KeyError: 'labels'
Exception ignored in: <function Pool.__del__ at 0x7f01>
{TRACE}TypeError: 'NoneType' object is not callable
""",
        "KeyError: 'labels'",
        "program",
    ),
    "a log line inside a traceback": (
        """
        Traceback (most recent call last):
          File "/home/me/train.py", line 7, in main
        2026-05-12 10:00:01,123 - loader - INFO - shard 8 is read
            step()
        step 12: loss 2.31
          File "/home/me/train.py", line 3, in step
            raise Odd("bananas")
        mine.OddError: bananas
        """,
        "mine.OddError: bananas",
        "unknown",
    ),
    "the end of a traceback": (
        """
          File "/home/me/train.py", line 7, in main
            step()
          File "/home/me/train.py", line 3, in step
            labels["x"]
        KeyError: 'x'
        [main] the run is over
        """,
        "KeyError: 'x'",
        "program",
    ),
    "a traceback that lost its indentation": (
        """
        Traceback (most recent call last):
        File "/home/me/train.py", line 7, in main
        step()
        File "/home/me/train.py", line 3, in step
        labels["x"]
        KeyError: 'x'
        """,
        "KeyError: 'x'",
        "program",
    ),
    "information is no reason": (
        """
        I0512 10:00:01.123456 8120 loader.cc:12] Connection refused, trying again
        [rank5]: I0512 10:00:01.123456 8120 loader.cc:12] Too many open files, trying again
        2026-05-12 10:00:01,123 - loader - INFO - No space left on device, trying again
        cannot read shard 7
        """,
        "cannot read shard 7",
        "unknown",
    ),
    "a traceback whose end is cut off": (
        f"cannot read shard 7\n{TRACE}",
        "cannot read shard 7",
        "unknown",
    ),
    "an error that was survived, and the end long after it": (
        f"{TRACE}ModuleNotFoundError: No module named 'apex'\n" + "step\n" * 21 + "Killed\n",
        "Killed",
        "capacity",
    ),
    "an error, and what an exit prints": (
        f"{TRACE}ModuleNotFoundError: No module named 'apex'\n" + "step\n" * 19 + "Killed\n",
        "ModuleNotFoundError: No module named 'apex'",
        "program",
    ),
    "a long stack of C++": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  bananas\n"
        + "".join(f"frame #{number}: f() + 0x1 (0x7f01 in libtorch.so)\n" for number in range(80)),
        "what():  bananas",
        "program",
    ),
    "the last error of NCCL": (
        f"""
{TRACE}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
socketStartConnect: Connect to 10.0.0.7<40313> failed : Software caused connection abort
""",
        "socketStartConnect: Connect to 10.0.0.7<40313> failed : Software caused connection abort",
        "network",
    ),
    "a last error of NCCL that the table does not know": (
        f"""
{TRACE}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Rank 3 has a communicator of another size
""",
        "Rank 3 has a communicator of another size",
        "program",
    ),
    "an assertion on a GPU, then an error of its library": (
        f"""
../aten/Loss.cu:242: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.
../aten/Loss.cu:242: nll_loss: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.
{TRACE}RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`
""",
        "../aten/Loss.cu:242: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        "program",
    ),
    "a loader's worker for want of shared memory": (
        f"""
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
{TRACE}RuntimeError: DataLoader worker (pid 81) is killed by signal: Bus error.
""",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "capacity",
    ),
    "ranks that wait, and one that is behind": (
        """
        [rank0]:[E512 10:00:01.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=812, OpType=ALLREDUCE)
        [rank7]:[E512 10:00:02.1 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=811, OpType=ALLREDUCE)
        """,
        "[Rank 7] Watchdog caught collective operation timeout",
        "network",
    ),
    "a process of torch.multiprocessing": (
        f"""
{TRACE}torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 3 terminated with the following error:
{TRACE}IndexError: list index out of range
""",
        "IndexError: list index out of range",
        "program",
    ),
    "a process of torch.multiprocessing that crashed": (
        f"{TRACE}torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV\n",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV",
        "program",
    ),
    "a loader's worker that raised": (
        f"""
{TRACE}IndexError: Caught IndexError in DataLoader worker process 1.
Original {TRACE}IndexError: list index out of range
""",
        "IndexError: list index out of range",
        "program",
    ),
    "a child's traceback in a message": (
        f"""
{TRACE}RuntimeError: a child has failed:
{TRACE}IndexError: list index out of range
see its log

The above exception was the direct cause of the following exception:

{TRACE}mine.ShardError: shard 7
""",
        "mine.ShardError: shard 7",
        "unknown",
    ),
    "what was raised from a group": (
        f"""
  + Exception Group {TRACE}ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | {TRACE}KeyError: 'labels'
    +---------------- 2 ----------------
    | {TRACE}OSError: [Errno 28] No space left on device
    +------------------------------------

The above exception was the direct cause of the following exception:

{TRACE}mine.SaveError: step 7 was not saved
""",
        "mine.SaveError: step 7 was not saved",
        "capacity",
    ),
    "a group of errors that have not been raised": (
        f"""
  + Exception Group {TRACE}ExceptionGroup: two shards (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: shard 7
    +---------------- 2 ----------------
    | OSError: [Errno 28] No space left on device
    +------------------------------------
""",
        "OSError: [Errno 28] No space left on device",
        "capacity",
    ),
    "an engine of vLLM's": (
        behind("(APIServer pid=7) ", "RuntimeError: Engine core initialization failed. See root cause above.")
        + behind("(EngineCore_0 pid=8) ERROR 05-12 10:00:01 [core.py:7] ", "ValueError: no such quantization: q3"),
        "ValueError: no such quantization: q3",
        "program",
    ),
    "Ray's block of a task": (
        """
        ray.exceptions.RayTaskError(ZeroDivisionError): ray::work() (pid=812, ip=10.0.0.3)
          File "/home/me/driver.py", line 3, in work
            return 1 / n
        ZeroDivisionError: division by zero
        """,
        "ZeroDivisionError: division by zero",
        "program",
    ),
    "Ray's guesses are no reasons": (
        """
        (raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit detail: \
Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The \
process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called.
        """,
        "A worker died or was killed while executing a task by an unexpected system error.",
        "network",
    ),
    "Ray's guesses of today": (
        "the task failed. Some common causes include: (1) the process was killed by the OOM killer, (2) SIGSEGV\nbye\n",
        "",
        "unknown",
    ),
    "a node of Ray's": (
        f"""
{TRACE}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: Trainer
\tip: 10.0.0.3
The actor is dead because its node has died. Node Id: 8120
""",
        "The actor is dead because its node has died. Node Id: 8120",
        "hardware",
    ),
    "JAX, whose coordinator is gone": (
        """
        E0512 10:00:01.123456 8120 coordination_service_agent.cc:332] Polled an error from coordination service.
        F0512 10:00:01.123457 8120 client.h:77] Terminating process because the JAX distributed service detected fatal \
errors. UNAVAILABLE: the leader task was preempted/died/restarted unexpectedly.
        *** Check failure stack trace: ***
            @     0x7f01  (unknown)
        """,
        "Terminating process because the JAX distributed service detected fatal errors.",
        "network",
    ),
    "XLA without memory": (
        f"{TRACE}jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 85899345 bytes.\n",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 85899345 bytes.",
        "capacity",
    ),
    "TensorFlow, an argument": (
        f"""
{TRACE}tensorflow.python.framework.errors_impl.InvalidArgumentError: Matrix size-incompatible: In[0]: [8,3]
\t [[node MatMul]]
""",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Matrix size-incompatible: In[0]: [8,3]",
        "program",
    ),
    "MPICH": (
        """
        Abort(15) on node 2 (rank 2 in comm 0): Fatal error in PMPI_Recv: Message truncated, error stack:
        PMPI_Recv(173): MPI_Recv(buf=0x7f01, count=1, MPI_INT, src=0) failed
        """,
        "Abort(15) on node 2 (rank 2 in comm 0): Fatal error in PMPI_Recv: Message truncated, error stack:",
        "program",
    ),
    "Open MPI, which lost a node": (
        """
        --------------------------------------------------------------------------
        ORTE has lost communication with a remote daemon.

          HNP daemon   : [[1,0],0] on node node1
        --------------------------------------------------------------------------
        """,
        "ORTE has lost communication with a remote daemon.",
        "network",
    ),
    "mpirun, of a process that was killed": (
        """
        --------------------------------------------------------------------------
        Primary job  terminated normally, but 1 process returned a non-zero exit code.
        --------------------------------------------------------------------------
        mpirun noticed that process rank 1 with PID 4812 on node n4 exited on signal 9 (Killed).
        """,
        "mpirun noticed that process rank 1 with PID 4812 on node n4 exited on signal 9 (Killed).",
        "capacity",
    ),
    "Fortran": (
        """
         step 7
        At line 12 of file solve.f90
        Fortran runtime error: Index '11' of dimension 1 of array 'a' above upper bound of 10

        Error termination. Backtrace:
        #0  0x7f01 in ???
        """,
        "Fortran runtime error: Index '11' of dimension 1 of array 'a' above upper bound of 10",
        "program",
    ),
    "Intel's Fortran": (
        """
        forrtl: severe (174): SIGSEGV, segmentation fault occurred
        Image              PC                Routine            Line        Source
        solver             0000000000401B5A  Unknown               Unknown  Unknown
        """,
        "forrtl: severe (174): SIGSEGV, segmentation fault occurred",
        "program",
    ),
    "Go": (
        """
        panic: runtime error: index out of range [5] with length 3

        goroutine 1 [running]:
        main.main()
        \t/src/main.go:9 +0x1d
        exit status 2
        """,
        "panic: runtime error: index out of range [5] with length 3",
        "program",
    ),
    "Rust": (
        """
        thread 'main' panicked at 'no shard 7', src/main.rs:4:5
        stack backtrace:
           0: rust_begin_unwind
        """,
        "thread 'main' panicked at 'no shard 7', src/main.rs:4:5",
        "program",
    ),
    "Rust of today": (
        """
        thread 'loader' (8120) panicked at src/main.rs:4:5:
        no shard 7
        note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
        """,
        "no shard 7",
        "program",
    ),
    "the JVM": (
        """
        Exception in thread "main" java.lang.IllegalStateException: no shard 7
        \tat org.mine.Loader.read(Loader.java:12)
        \tat org.mine.Main.main(Main.java:3)
        """,
        'Exception in thread "main" java.lang.IllegalStateException: no shard 7',
        "program",
    ),
    "Spark": (
        """
        26/05/12 10:00:01 INFO TaskSetManager: Starting task 3.0 in stage 1.0
        26/05/12 10:00:02 ERROR Executor: Exception in task 3.0 in stage 1.0 (TID 5)
        java.lang.OutOfMemoryError: Java heap space
        \tat java.nio.HeapByteBuffer.<init>(HeapByteBuffer.java:57)
        26/05/12 10:00:03 WARN TaskSetManager: Lost task 3.0 in stage 1.0: ExecutorLostFailure (executor 2 exited)
        """,
        "java.lang.OutOfMemoryError: Java heap space",
        "capacity",
    ),
    "Julia": (
        """
        ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]
        Stacktrace:
         [1] getindex
           @ ./array.jl:801 [inlined]
        """,
        "ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]",
        "program",
    ),
    "C++": (
        """
        terminate called after throwing an instance of 'std::out_of_range'
          what():  map::at
        Aborted (core dumped)
        """,
        "what():  map::at",
        "program",
    ),
    "an assertion in C": (
        "solver: mesh.c:12: refine: Assertion `n > 0' failed.\nAborted (core dumped)\n",
        "solver: mesh.c:12: refine: Assertion `n > 0' failed.",
        "program",
    ),
    "glibc": ("free(): invalid pointer\nAborted (core dumped)\n", "free(): invalid pointer", "program"),
    "a shell, of a crash": (
        "step 7\n./run.sh: line 6:  3470 Segmentation fault      (core dumped) ./solver\n",
        "./run.sh: line 6:  3470 Segmentation fault      (core dumped) ./solver",
        "program",
    ),
    "a shell, without the program": (
        "module: loading cuda\n/var/spool/job1/slurm_script: line 4: trainn: command not found\n",
        "/var/spool/job1/slurm_script: line 4: trainn: command not found",
        "program",
    ),
    "the loader of programs": (
        "./solver: error while loading shared libraries: libfoo.so.3: cannot open shared object file: No such file\n",
        "./solver: error while loading shared libraries: libfoo.so.3: cannot open shared object file: No such file",
        "program",
    ),
    "Slurm, memory": (
        """
        /var/spool/job1/slurm_script: line 4:  8156 Killed                  python3 main.py
        slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed.
        """,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed.",
        "capacity",
    ),
    "Slurm, time": (
        """
        srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
        slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO TIME LIMIT ***
        srun: error: n1: tasks 0-3: Terminated
        """,
        "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO TIME LIMIT ***",
        "capacity",
    ),
    "Slurm, another job comes first": (
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO PREEMPTION ***\n",
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-05-12T10:00:01 DUE TO PREEMPTION ***",
        "transient",
    ),
    "Slurm, a node": (
        """
        srun: error: n4: task 2: Killed
        srun: error: Node failure on n4
        """,
        "srun: error: Node failure on n4",
        "hardware",
    ),
    "Slurm, a task that crashed and the others that it ended": (
        """
        slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-05-12T10:00:01 ***
        srun: error: n4: task 7: Bus error (core dumped)
        srun: error: n1: tasks 0-3: Terminated
        """,
        "srun: error: n4: task 7: Bus error (core dumped)",
        "capacity",
    ),
    "LSF": (
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "capacity",
    ),
    "PBS": (
        "=>> PBS: job killed: walltime 3605 exceeded limit 3600\n",
        "=>> PBS: job killed: walltime 3605 exceeded limit 3600",
        "capacity",
    ),
    "a name server": (
        f"""
{TRACE}socket.gaierror: [Errno -3] Temporary failure in name resolution

The above exception was the direct cause of the following exception:

{TRACE}mine.FetchError: hub.site was not found
""",
        "mine.FetchError: hub.site was not found",
        "transient",
    ),
    "an object store": (
        f"{TRACE}botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation\n",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
        "transient",
    ),
    "a service that fails": (
        f"{TRACE}requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.site/m\n",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.site/m",
        "transient",
    ),
    "a service that refuses": (
        f"{TRACE}requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub.site/m\n",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub.site/m",
        "program",
    ),
    "a database that is away": (
        f"""
{TRACE}psycopg2.OperationalError: could not connect to server: Connection refused
\tIs the server running on host "db" (10.0.0.9) and accepting TCP/IP connections on port 5432?
""",
        "psycopg2.OperationalError: could not connect to server: Connection refused",
        "transient",
    ),
    "a peer over plain sockets": (
        f"{TRACE}ConnectionRefusedError: [Errno 111] Connection refused\n",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "network",
    ),
    "a wrong argument": (
        """
        usage: train.py [-h] [--data DATA]
        train.py: error: unrecognized arguments: --dat
        """,
        "train.py: error: unrecognized arguments: --dat",
        "program",
    ),
    "a compiler": (
        f"""
/src/op.cpp:12:3: error: 'foo' was not declared in this scope
ninja: build stopped: subcommand failed.
{TRACE}subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.

The above exception was the direct cause of the following exception:

{TRACE}RuntimeError: Error building extension 'fused_op'
""",
        "RuntimeError: Error building extension 'fused_op'",
        "program",
    ),
    "AMD's GPUs": (
        """
        Memory access fault by GPU node-2 (Agent handle: 0x5640) on address 0x7fee. Reason: Page not present.
        Aborted (core dumped)
        """,
        "Memory access fault by GPU node-2 (Agent handle: 0x5640) on address 0x7fee. Reason: Page not present.",
        "program",
    ),
    "nobody else's words": (
        "loading shard 7\nerror: shard 7 has no index\ncleaning up\nbye\n",
        "error: shard 7 has no index",
        "unknown",
    ),
    "a hang-up": (
        f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 81 got signal: 1\n",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 81 got signal: 1",
        "transient",
    ),
    "the end of torchrun's summary": (
        """
          rank      : 0 (local_rank: 0)
          exitcode  : -11 (pid: 81)
          traceback : Signal 11 (SIGSEGV) received by PID 81
        """,
        "Signal 11 (SIGSEGV) received by PID 81",
        "program",
    ),
    "torchrun's log alone": (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 81) of binary",
        "failed (exitcode: -9) local_rank: 3 (pid: 81) of binary",
        "capacity",
    ),
    "torchrun, of a rank that was killed": (
        f"""
        E0512 10:00:01.123000 10805 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)
{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
========
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-05-12_10:00:01
  host      : n1
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 8129)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 8129
========
""",
        "Signal 9 (SIGKILL) received by PID 8129",
        "capacity",
    ),
}


@pytest.mark.parametrize(("text", "quote", "kind"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_person_would_quote_the_same_line(text: str, quote: str, kind: str) -> None:
    failure = explain([ended(text)], {})
    assert failure.quote.startswith(quote)
    assert failure.kind == kind


def test_rays_block_names_the_address_of_the_worker() -> None:
    text, *_ = OUTPUTS["Ray's block of a task"]
    assert [each.address for each in complaints_of(textwrap.dedent(text).strip().splitlines())] == ["10.0.0.3"]


def test_of_a_very_long_line_both_ends_are_read() -> None:
    half = MAX_LINE // 2
    assert clean_line("a" * half + "b" * half) == "a" * half + "b" * half
    assert clean_line("a" * half + "b" + "c" * half) == "a" * half + "c" * half
