"""Runs at the start of every Python of the program, which has this folder on PYTHONPATH with ``--hang-timeout``.

It has Python write the stacks of all threads to a file at a signal, for systems where one process may not look into
another. Then it runs the ``sitecustomize`` that it hides, if there is one. It must stay quick, and must not fail.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 5 ms


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


with contextlib.suppress(KeyError, OSError, ValueError, RuntimeError):  # the program runs in any case
    _register()
_run_hidden()
