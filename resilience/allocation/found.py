"""Finding the allocation that the options and the environment speak of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.device import gpu_names
from resilience.allocation.addresses import is_this_machine, reachable
from resilience.allocation.base import Allocation, AllocationError
from resilience.allocation.local import LocalAllocation
from resilience.allocation.ray import RayAllocation
from resilience.allocation.remote import RemoteAllocation
from resilience.allocation.slurm import Srun, slurm_node_names, slurm_this_node
from resilience.allocation.ssh import Ssh, ssh_host_names
from resilience.options import JobOptions

__all__ = ["Elsewhere", "find_allocation"]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The primary is a node of Slurm's, and we are not on it."""

    primary: str


def find_allocation(options: JobOptions, environ: Mapping[str, str] = os.environ) -> Allocation | Elsewhere:
    """Return the nodes of the job, none of which has been asked anything yet.

    Raises
    ------
    UsageError
        If the options contradict each other or the environment.
    AllocationError
        If the nodes are not to be had.
    """
    match options.manager(environ):
        case "slurm":
            return _of_slurm(options.virtual_gpus)
        case "ssh":
            return _of_ssh(options.hosts(), options.virtual_gpus)
        case "ray":
            return RayAllocation(environ["RAY_ADDRESS"], options.virtual_gpus)
        case "local":
            gpus = () if options.virtual_gpus else gpu_names()
            return LocalAllocation(options.local_nodes or 1, options.virtual_gpus, gpus)


def _of_slurm(virtual_gpus: int) -> Allocation | Elsewhere:
    names = slurm_node_names()
    primary = next(iter(names))
    if slurm_this_node() != primary:
        return Elsewhere(primary)
    return RemoteAllocation(reachable(names), Srun(), virtual_gpus)


def _of_ssh(hosts: tuple[str, ...], virtual_gpus: int) -> Allocation:
    names = ssh_host_names(hosts)
    if not is_this_machine(names[hosts[0]]):
        raise AllocationError(
            f"the first host, {hosts[0]}, is the primary, and this is another machine: "
            f"start laggard there, or name this machine first"
        )
    return RemoteAllocation(reachable(names), Ssh(), virtual_gpus)
