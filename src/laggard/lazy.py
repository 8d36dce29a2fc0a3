"""Public names of a package, which are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazily(package: str, init: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__`` from the imports in the stub beside its file."""
    lines = Path(init).with_name("__init__.pyi").read_text(encoding="utf-8").splitlines()
    modules = {words[3]: words[1] for words in map(str.split, lines) if words[:1] == ["from"]}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)
