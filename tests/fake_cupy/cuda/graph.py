"""CuPy's ``cupy.cuda.graph``: operations that run when the graph is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Graph"]


class Graph:
    """What was captured of a stream; a launch runs it in the current one."""

    def __init__(self, operations: Sequence[Callable[[], object]]) -> None:
        self._operations = operations

    def upload(self, stream: Any = None) -> None:
        assert stream is None

    def launch(self, stream: Any = None) -> None:
        assert stream is None
        for operation in self._operations:
            operation()
