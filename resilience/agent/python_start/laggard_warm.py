"""A warm process: a Python that has started and loaded modules, from which ranks are forked. Only Python's own library.

The node's agent starts the program's own command line, with a socket instead of a rank. Before the program is read,
this process loads the modules and waits. A rank is a fork of it that goes on from there: its Python then reads the
program as it always does, so that arguments, ``__main__``, tracebacks and exit codes are those of a fresh process. What
a fresh process would have differently is set right first: its parent, environment, folder, output, random generators.

A module is loaded in a fork that takes over if nothing speaks against it. If the module has started a thread, opened a
socket or initialized CUDA, has read a variable that each rank has its own of, or has loaded a file of the program, the
fork ends, and the process goes on without that module.

What it and the agent say to each other are the records of ``laggard.resilience.wire.warm``, written by hand since the
program's Python may not have that module: `Load` and a byte for each rank with its socket come in, `LeftOut` and
`WarmReady` go out; on that socket `Forked` goes out, `Run` comes in with the rank's standard output and error, and
`Runs` or `Refused` is the answer, after which it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import all_suffixes

import laggard_imports  # beside this file

ENVIRONMENT_ROOM = "LAGGARD_WARM_ROOM"
STANDS_BY = "LAGGARD_STANDS_BY"
MESSAGE_BYTES = 1 << 20
MAX_RANKS = 200
IMPORT_DEADLINE_S = 600.0  # nobody waits for it
ADOPTION_DEADLINE_S = 10.0
_POLL_S = 0.001
_PR_SET_PDEATHSIG = 1
_NAMES = {"socket": "a socket", "pipe": "a pipe"}
_HARMLESS_DEVICES = ("null", "zero", "random", "urandom", "tty", "pts/", "shm/")

_NOT_LOADED_BY_NAME = ("__main__", "sitecustomize", "laggard_imports", "laggard_warm")

Stamps = dict[str, tuple[int, int, int]]

_libc = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):  # noqa: N818 - an answer to the agent, and no error of this package can be imported here
    """Why no rank can be forked, or a module must not be loaded here."""


def serve(descriptor: int, run_hidden: Callable[[], None]) -> None:
    """Load modules and fork ranks until the agent closes the socket; returns only in a rank that is to run."""
    control = socket.socket(fileno=descriptor)
    settings = json.loads(control.recv(MESSAGE_BYTES))
    del os.environ[ENVIRONMENT_ROOM]
    for name, value in os.environ.items():  # a copy for the C library: the kernel's own is overwritten in each rank
        os.environ[name] = value
    _Watched.varying = frozenset(settings["varying"])
    program_folder = _program_folder()
    sys.path[:0] = program_folder
    os.environ.__class__ = _Watched
    run_hidden()
    if why := _trouble([control.fileno()], ()):
        raise _Refused(f"Python's start here {why}")
    _load(control, settings)
    os.environ.__class__ = os._Environ
    for folder in program_folder:
        sys.path.remove(folder)
    _adopted_by(settings["agent_pid"])
    gc.collect()
    gc.freeze()  # what is never collected stays shared
    stamps = _stamps()
    _tell(control, "WarmReady", pid=os.getpid(), kib=_size_kib(), n_modules=len(sys.modules))
    channel = _fork_ranks(control)
    _become_rank(channel, settings, stamps, program_folder)


def _program_folder() -> list[str]:
    """Return what Python will put first in ``sys.path`` for the program, as a list of none or one."""
    if getattr(sys.flags, "safe_path", False):
        return []
    program = sys.argv[0]
    return [os.getcwd() if program in ("-m", "-c") else os.path.dirname(os.path.realpath(program))]  # noqa: PTH109, PTH120


class _Watched(os._Environ):  # type: ignore[type-arg]
    """Remembers who asks for what each rank has its own of: while modules are loaded, and where that is not known."""

    varying: frozenset[str] = frozenset()
    asked_for: set[str] = set()  # noqa: RUF012 - one environment, one process

    def __getitem__(self, name: str) -> str:
        if name in self.varying:
            self.asked_for.add(name)
        return str(super().__getitem__(name))


# ---------------------------------------------------------------------------------------------------------------------
# Loading modules


def _load(control: socket.socket, settings: dict[str, list[str]]) -> None:
    for name in settings["modules"]:
        if name not in sys.modules and _may_be_loaded(name):
            _take_over_with(name, control)


def load_more(names: Iterable[str]) -> None:
    """Load modules in a rank that stands by; the warm processes of its node have loaded them meanwhile."""
    for name in names:
        if name not in sys.modules and _may_be_loaded(name):
            with contextlib.suppress(Exception):  # the program lives with it
                importlib.import_module(name)


def _may_be_loaded(name: str) -> bool:
    """Return whether a module is there and a library's, as far as can be told by looking."""
    parent, _, _ = name.rpartition(".")
    if parent and parent not in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - a finder of the program's own, or a broken library: the program will tell
        return False
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return spec is not None and all(map(laggard_imports.is_of_library, places))


def _take_over_with(name: str, control: socket.socket) -> None:
    """Load a module in a fork that takes over if nothing speaks against it; otherwise go on without the module."""
    reader, writer = os.pipe()
    child = _fork()
    if child == 0:
        os.close(reader)
        try:
            _import(name, [control.fileno(), writer])
        except BaseException as error:  # noqa: BLE001 - whatever a module raises, SystemExit too
            if isinstance(error, _Refused):  # else the program lives with it
                _tell(control, "LeftOut", name=name, why=str(error))
            os._exit(1)
        os.write(writer, b"1")
        os.close(writer)
        return
    os.close(writer)
    is_late = not select.select([reader], [], [], IMPORT_DEADLINE_S)[0]
    if is_late:
        os.kill(child, signal.SIGKILL)
    elif os.read(reader, 1):
        os._exit(0)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if is_late:
        _tell(control, "LeftOut", name=name, why=f"takes longer than {IMPORT_DEADLINE_S:g} s to load")
    elif os.WIFSIGNALED(status):
        _tell(control, "LeftOut", name=name, why=f"ends Python with {signal.Signals(os.WTERMSIG(status)).name}")


def _import(name: str, own: Sequence[int]) -> None:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded = [sys.modules[each] for each in set(sys.modules) - before if each in sys.modules]
    foreign = sorted(
        file
        for module in loaded
        if (file := getattr(module, "__file__", None)) and not laggard_imports.is_of_library(file)
    )
    if why := _trouble(own, foreign):
        raise _Refused(why)


# ---------------------------------------------------------------------------------------------------------------------
# What must not be in a process that ranks are forked from


def _trouble(own: Iterable[int], foreign: Sequence[str]) -> str:
    """Return what speaks against a fork; empty: nothing."""
    if foreign:
        return f"loads {foreign[0]}, which is not a library's"
    if _Watched.asked_for:
        return f"reads {', '.join(sorted(_Watched.asked_for))}"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "initializes CUDA"
    if in_the_way := descriptors_in_the_way(own):
        return f"opens {in_the_way[0]}"
    if running := threads():
        return f"runs {running} more thread" + ("s" if running > 1 else "")
    return ""


def descriptors_in_the_way(own: Iterable[int]) -> list[str]:
    """Return what is open that processes cannot share: sockets, pipes, devices; files can be."""
    kept = {0, 1, 2, *own}
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the one that lists them
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
            is_device = target.startswith("/dev/") and not target[len("/dev/") :].startswith(_HARMLESS_DEVICES)
            if descriptor not in kept and (is_device or not target.startswith("/")):
                found.append(_NAMES.get(target.partition(":")[0], target))
    return found


def threads() -> int:
    """Return how many other threads run that do not end for a fork, as those of OpenBLAS do."""
    if _n_threads() > 1:
        child = _fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return _n_threads() - 1


def _n_threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _fork() -> int:
    with warnings.catch_warnings():  # newer Pythons warn of threads, which we look for ourselves
        warnings.simplefilter("ignore")
        return os.fork()


# ---------------------------------------------------------------------------------------------------------------------
# Forking ranks


def _fork_ranks(control: socket.socket) -> socket.socket:
    """Fork ranks whenever the agent asks; returns the socket of a rank, in that rank."""
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, MAX_RANKS)
        if not asked:
            os._exit(0)
        channels = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        why = _trouble([control.fileno(), *descriptors], ())
        for channel in channels if why else ():
            _tell(channel, "Refused", why=f"the warm process {why}")
        if not why and (mine := _fork_each(channels)) is not None:
            control.close()
            return mine
        for channel in channels:
            channel.close()


def _fork_each(channels: Sequence[socket.socket]) -> socket.socket | None:
    """Fork a rank for each socket, as children of nobody, whom the agent adopts; return the socket, in a rank."""
    try:
        between = os.fork()
    except OSError as error:
        for channel in channels:
            _tell(channel, "Refused", why=f"no process can be forked: {error.strerror}")
        return None
    if between:
        os.waitpid(between, 0)
        return None
    for number, channel in enumerate(channels):
        try:
            is_rank = os.fork() == 0
        except OSError as error:
            _tell(channel, "Refused", why=f"no process can be forked: {error.strerror}")
            continue
        if is_rank:
            for other in (*channels[:number], *channels[number + 1 :]):
                other.close()
            return channel
    os._exit(0)


def _become_rank(channel: socket.socket, settings: dict[str, int], stamps: Stamps, folders: Sequence[str]) -> None:
    _adopted_by(settings["agent_pid"])
    _tell(channel, "Forked", pid=os.getpid())
    told, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
    if not told:
        os._exit(0)  # the launch has not come
    start = json.loads(told)
    try:
        _check_stamps(stamps, folders)
        os.chdir(start["directory"])
        _set_environment(start["environment"])
    except (OSError, _Refused) as error:
        _tell(channel, "Refused", why=str(error))
        os._exit(1)
    for descriptor, target in zip(descriptors, (1, 2)):  # noqa: B905 - the program's Python may be an old one
        os.dup2(descriptor, target)
        os.close(descriptor)
    _begin_random_numbers_anew()
    importlib.invalidate_caches()
    _tell(channel, "Runs")
    channel.close()
    if STANDS_BY in start["environment"]:
        _Watched.varying, _Watched.asked_for = _Watched.varying - start["environment"].keys(), set()
        os.environ.__class__ = _Watched
    if start["imports"]:
        laggard_imports.record(start["imports"])


def _adopted_by(agent: int) -> None:
    """Wait until the process that forked this one has ended, and the agent is its parent; end with the agent."""
    until_s = time.monotonic() + ADOPTION_DEADLINE_S
    while os.getppid() != agent:
        if time.monotonic() > until_s:
            os._exit(1)  # the agent has ended
        time.sleep(_POLL_S)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)


def _set_environment(environment: dict[str, str]) -> None:
    """Use an environment, and show it in ``/proc``, by which others find this rank."""
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        begin, end = map(int, file.read().rpartition(b")")[2].split()[47:49])
    if not begin or len(shown) >= end - begin:
        raise _Refused("its environment has outgrown that of the warm process")
    os.environ.clear()
    os.environ.update(environment)
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, len(shown))


def _begin_random_numbers_anew() -> None:
    """Give libraries chance numbers of this rank's own, as a fresh process has; Python itself has done so."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(sys.modules.get("torch"), "default_generator"):
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


# ---------------------------------------------------------------------------------------------------------------------
# Files that have changed since


def _stamps() -> Stamps:
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return dict(_stamped(file for file in files if os.path.isabs(file)))  # noqa: PTH117


def _stamped(files: Iterable[str]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for file in files:
        with contextlib.suppress(OSError):
            found = os.stat(file)  # noqa: PTH116
            yield file, (found.st_mtime_ns, found.st_size, found.st_ino)


def _check_stamps(stamps: Stamps, folders: Sequence[str]) -> None:
    """Refuse to run if a fresh process would load one of the modules otherwise."""
    now = dict(_stamped(stamps))
    for file, stamp in stamps.items():
        if now.get(file) != stamp:
            raise _Refused(f"{file} has changed")
    others = [folder for folder in sys.path if not laggard_imports.is_of_library(folder + os.sep)]
    names = {name for name in sys.modules if "." not in name} - {*sys.builtin_module_names, *_NOT_LOADED_BY_NAME}
    for folder in dict.fromkeys([*folders, *others]):
        for name in sorted(names & shadowed(folder)):
            if not str(getattr(sys.modules[name], "__file__", None)).startswith(folder + os.sep):
                raise _Refused(f"{name} is also in {folder}")


def shadowed(folder: str) -> set[str]:
    """Return the modules that a folder has."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            suffix = next((suffix for suffix in all_suffixes() if entry.name.endswith(suffix)), None)
            if suffix is not None:
                found.add(entry.name[: -len(suffix)])
            elif os.path.exists(os.path.join(entry.path, "__init__.py")):  # noqa: PTH110, PTH118
                found.add(entry.name)
    return found


def _size_kib() -> int:
    """Return this process's share of memory, by the kernel."""
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup") as file:  # noqa: PTH123
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return 0


def _tell(channel: socket.socket, kind: str, **fields: object) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever would read it has ended
        channel.send(json.dumps({"is": kind, **fields}).encode())
