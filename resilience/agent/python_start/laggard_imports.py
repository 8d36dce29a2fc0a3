"""Records which modules a rank imports, so that a warm process can load the same ones. Only Python's own library.

What another library imports as it is loaded itself is left out, except for the libraries as such: to import the first
imports the second. So a few dozen names are enough, and there are never more than `MAX_NAMES`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

MAX_NAMES = 500
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_PYTHONS_OWN = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - pathlib takes 5 ms


def is_of_library(file: str | None) -> bool:
    """Return whether a module's file is Python's own or an installed library's, rather than the program's."""
    if not file or not file.startswith(os.sep):  # built in
        return True
    return file.startswith(_PYTHONS_OWN) or any(f"{os.sep}{folder}{os.sep}" in file for folder in _LIBRARY_FOLDERS)


class _Recorder:
    """A finder that finds nothing: Python asks it first for each module that is not loaded yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loading: list[str] = []
        self._seen: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Record a name, unless a library that is being loaded asks for it."""
        del path, target
        if len(self._seen) >= MAX_NAMES:  # it stays in the list of finders, which may be in use
            return
        in_library = self._in_library()  # in any case: it forgets the names that are no longer being loaded
        is_new_library = "." not in name and name not in sys.stdlib_module_names
        if (is_new_library or not in_library) and name not in self._seen:
            self._seen.add(name)
            with contextlib.suppress(OSError):  # the import goes on in any case
                os.write(self._descriptor, f"{name}\n".encode())
        self._loading.append(name)

    def _in_library(self) -> bool:
        """Return whether a library is being loaded."""
        self._loading = [name for name in self._loading if _is_loading(name)]
        return any(is_of_library(getattr(sys.modules.get(name), "__file__", None)) for name in self._loading)


def _is_loading(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def record(path: str) -> None:
    """Append the name of each module that this process imports from now on to a file, if that is possible."""
    with contextlib.suppress(
        OSError, AttributeError
    ):  # a full disk, a Python before 3.10: the program runs in any case
        _ = sys.stdlib_module_names
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sys.meta_path.insert(0, _Recorder(descriptor))
