"""Asks a launcher, over the interface that it has for MPI libraries, what it says in no variable: where rank 0 runs.

Open MPI, PRRTE and ``srun --mpi=pmix`` answer over PMIx, whose library knows the host of each rank. Flux, MPICH and
Intel MPI answer over PMI-1 (Flux's RFC 13), lines on an inherited socket, by which ranks tell each other what they
want: here rank 0 its host.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Mapping

from laggard.resilience.allocation.node_lists import expand_node_list
from laggard.resilience.errors import UsageError

PMI_VARIABLE = "PMI_FD"
_PMIX_VARIABLE = "PMIX_NAMESPACE"
_STEP_VARIABLE = "SLURM_STEP_NODELIST"
_PMIX_LIBRARY = "libpmix.so.2"
_ANY_RANK = 2**32 - 2
_KEY = "laggard-first"
_MAX_LINE = 4096


def ask_launcher(environ: Mapping[str, str], wait_s: float) -> dict[str, str]:
    """Return the variables that others set: the first node's name, and with PMIx how many processes there are.

    Waits up to ``wait_s`` seconds for the other processes, if rank 0 has to tell them.
    """
    try:
        if _PMIX_VARIABLE in environ:
            return _ask_pmix()
        if PMI_VARIABLE in environ:
            return {"MASTER_ADDR": _ask_pmi(int(environ[PMI_VARIABLE]), environ.get("PMI_RANK") == "0", wait_s)}
    except (OSError, ValueError) as error:
        fix = "give --join=HOST, or set MASTER_ADDR"
        raise UsageError(
            "--join", f"does not learn from the launcher where the first node is ({error})", fix
        ) from error
    step = expand_node_list(environ.get(_STEP_VARIABLE, ""))
    return {"MASTER_ADDR": step[0]} if step else {}


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Content(ctypes.Union):
    _fields_ = (("string", ctypes.c_char_p), ("uint32", ctypes.c_uint32))


class _Value(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint16), ("content", _Content))


def _ask_pmix() -> dict[str, str]:
    library = ctypes.CDLL(_PMIX_LIBRARY)
    own = _Process()
    _expect_success("PMIx_Init", library.PMIx_Init(ctypes.byref(own), None, 0))

    def get(rank: int, key: bytes) -> _Content:
        process, value = _Process(own.namespace, rank), ctypes.POINTER(_Value)()
        status = library.PMIx_Get(ctypes.byref(process), key, None, 0, ctypes.byref(value))
        _expect_success(f"PMIx_Get {key.decode()}", status)
        content: _Content = value.contents.content
        return content

    try:
        return {
            "MASTER_ADDR": get(0, b"pmix.hname").string.decode(),
            "NNODES": str(get(_ANY_RANK, b"pmix.job.size").uint32),
        }
    finally:
        library.PMIx_Finalize(None, 0)


def _expect_success(what: str, status: int) -> None:
    if status:
        raise OSError(f"{what}: status {status}")


def _ask_pmi(descriptor: int, is_first: bool, wait_s: float) -> str:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket(fileno=descriptor))
        connection.settimeout(wait_s)
        # Flux names the space after its job, in more than ASCII.
        lines = stack.enter_context(connection.makefile("rw", encoding="utf-8", errors="surrogateescape", newline="\n"))

        def ask(command: str, wanted: str = "cmd", **attributes: str) -> str:
            words = {"cmd": command, **attributes}
            lines.write(" ".join(f"{name}={value}" for name, value in words.items()) + "\n")
            lines.flush()
            answer = lines.readline(_MAX_LINE)
            told = dict(word.partition("=")[::2] for word in answer.split())
            if wanted not in told or told.get("rc", "0") != "0":
                raise OSError(f"PMI answers {command} with {answer!r}")
            return told[wanted]

        ask("init", pmi_version="1", pmi_subversion="1")
        space = ask("get_my_kvsname", "kvsname")
        if is_first:
            ask("put", kvsname=space, key=_KEY, value=socket.gethostname())
        ask("barrier_in")
        host = ask("get", "value", kvsname=space, key=_KEY)
        ask("finalize")
        return host
