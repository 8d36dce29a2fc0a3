"""Allocations: the nodes that we were given, and how to start a process on each.

Virtual nodes of one machine (:mod:`~resilience.allocation.local`), or nodes on machines of their own
(:mod:`~resilience.allocation.remote`) that are reached by ``srun`` or by ``ssh``.
"""

from resilience.allocation.base import Allocation, AllocationError
from resilience.allocation.found import Elsewhere, find_allocation
from resilience.allocation.local import LocalAllocation
from resilience.allocation.remote import RemoteAllocation

__all__ = ["Allocation", "AllocationError", "Elsewhere", "LocalAllocation", "RemoteAllocation", "find_allocation"]
