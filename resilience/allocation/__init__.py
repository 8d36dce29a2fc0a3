"""Which nodes the job has, and how to start a process on each.

Runs on the primary node; the ``srun`` and ``ssh`` command lines are built here. Nodes are virtual ones on this machine
(:mod:`~laggard.resilience.allocation.local`), or machines of their own: reached by ``srun`` or ``ssh``
(:mod:`~laggard.resilience.allocation.remote`), or joining (:mod:`~laggard.resilience.allocation.joined`).

Words: *discovery* collects the handshakes of all nodes, in which an agent says what its node has; a *step* is one
``srun`` that has started the agents of many nodes.
"""

from laggard.resilience.allocation.base import Allocation
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.errors import AllocationError

__all__ = ["Allocation", "AllocationError", "LocalAllocation", "RemoteAllocation"]
