"""The laggard command: allocations, the cluster on them, and the restart controller.

``Job`` is loaded on first use, so that a node's agent, which needs none of it, starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.job import Job

__all__ = ["Job"]


def __getattr__(name: str) -> object:
    if name == "Job":
        from resilience.job import Job

        return Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
