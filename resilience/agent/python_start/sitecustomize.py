"""Runs at the start of a Python of the program that has this folder on PYTHONPATH.

It does up to three things, and must stay quick and must not fail:

- as a warm process, it loads modules and forks ranks (:mod:`laggard_warm`); only in a rank does it go on,
- in a rank that has been asked to, it records what the rank imports (:mod:`laggard_imports`),
- with ``--hang-timeout``, it has Python write the stacks of all threads to a file at a signal, for systems where one
  process may not look into another.

The first two are for this process only, so they take this folder away from PYTHONPATH once. Then it runs the
``sitecustomize`` that it hides, if there is one.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 5 ms


def _for_this_process_only() -> None:
    """Take this folder away from PYTHONPATH and ``sys.path``, unless it is there a second time."""
    rest = os.environ["PYTHONPATH"].split(os.pathsep)[1:]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        del os.environ["PYTHONPATH"]
    if _HERE not in rest:
        sys.path[:] = [folder for folder in sys.path if folder != _HERE]


def _record_imports(path: str) -> None:
    import laggard_imports  # beside this file

    _for_this_process_only()
    laggard_imports.record(path)


def _keep_warm(descriptor: int) -> None:
    """Serve until this process is a rank that starts; whatever goes wrong, the program must not run here."""
    try:
        import laggard_warm  # beside this file

        _for_this_process_only()
        laggard_warm.serve(descriptor, _run_hidden)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)


def _register() -> None:
    node_folder = os.path.dirname(os.environ["LAGGARD_ENDPOINT_FILE"])  # noqa: PTH120
    path = os.path.join(node_folder, f"stacks-{os.getpid()}.txt")  # noqa: PTH118
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGRTMIN + 9, file=descriptor, all_threads=True)


def _run_hidden() -> None:
    others = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_is_warm = "LAGGARD_WARM" in os.environ
if _is_warm:
    _keep_warm(int(os.environ.pop("LAGGARD_WARM")))
elif "LAGGARD_IMPORTS" in os.environ:
    _record_imports(os.environ.pop("LAGGARD_IMPORTS"))
if _HERE in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    with contextlib.suppress(KeyError, OSError, ValueError, RuntimeError):  # the program runs in any case
        _register()
if not _is_warm:  # else the process that this rank was forked from has run it
    _run_hidden()
