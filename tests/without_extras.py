"""An environment in which Ray and Matplotlib, or others, are not installed, for the processes that a test starts."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

HIDES_EXTRAS = """
import importlib.metadata
from importlib.machinery import PathFinder

MISSING = {names}
find_module = PathFinder.find_spec.__func__
find_distribution = importlib.metadata.Distribution.from_name.__func__

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in MISSING else find_module(cls, name, path, target)

def from_name(cls, name):
    if name in MISSING:
        raise importlib.metadata.PackageNotFoundError(name)
    return find_distribution(cls, name)

PathFinder.find_spec = classmethod(find_spec)
importlib.metadata.Distribution.from_name = classmethod(from_name)
"""


def without_extras(folder: Path, names: Collection[str] = ("ray", "matplotlib")) -> dict[str, str]:
    """Return the variables of a Python, and of every Python that it starts, to which they are not installed."""
    (folder / "sitecustomize.py").write_text(HIDES_EXTRAS.replace("{names}", repr(set(names))))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
