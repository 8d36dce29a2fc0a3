"""The modules of laggard.torch, each of which needs PyTorch, and some a library on top of it."""

from __future__ import annotations

from importlib.util import find_spec

_LIBRARIES = {"laggard.torch.lightning": "lightning", "laggard.torch.transformers": "transformers"}


def is_for_missing_library(module: str) -> bool:
    """Return whether a module cannot be imported here."""
    if module == "laggard.ray_train":
        return any(find_spec(library) is None for library in ("ray", "fsspec", "pandas", "pyarrow", "requests"))
    if not module.startswith("laggard.torch."):
        return False
    return any(find_spec(library) is None for library in ("torch", _LIBRARIES.get(module, "torch")))
