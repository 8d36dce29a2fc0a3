"""Finds the allocation that the options and the environment specify."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from laggard.collectors.device import gpu_names
from laggard.collectors.ray_actors import require_ray
from laggard.resilience.allocation.base import Allocation
from laggard.resilience.allocation.host_files import Host, hosts_of_lsf, hosts_of_pbs, named_hosts
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.allocation.network import is_this_machine, resolve_addresses
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.allocation.slurm import Srun, check_runs_once, slurm_node_names
from laggard.resilience.allocation.ssh import Ssh, transport_of_lsf
from laggard.resilience.command.options import JobOptions
from laggard.resilience.errors import AllocationError
from laggard.resilience.ray.allocation import RayAllocation


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The primary node is in this Slurm job, but it is not this machine."""

    primary: str


def find_allocation(options: JobOptions, environ: Mapping[str, str] = os.environ) -> Allocation | Elsewhere:
    """Return the nodes of the job, before any of them has been contacted."""
    match options.manager(environ):
        case "slurm":
            return _of_slurm(options.virtual_gpus, environ)
        case "ssh":
            hosts = named_hosts(options.hostlist, options.hostfile)
            return _of_hosts(hosts, Ssh(hosts), options.virtual_gpus)
        case "pbs":
            hosts = hosts_of_pbs(environ)
            return _of_hosts(hosts, Ssh(hosts), options.virtual_gpus)
        case "lsf":
            return _of_hosts(hosts_of_lsf(environ), transport_of_lsf(), options.virtual_gpus)
        case "ray":
            require_ray()
            return RayAllocation(environ["RAY_ADDRESS"], options.virtual_gpus)
        case "local":
            gpus = () if options.virtual_gpus else gpu_names()
            return LocalAllocation(options.local_nodes or 1, options.virtual_gpus, gpus)


def _of_slurm(virtual_gpus: int, environ: Mapping[str, str]) -> Allocation | Elsewhere:
    check_runs_once(environ)
    names = slurm_node_names()
    if environ.get("SLURMD_NODENAME") != (primary := next(iter(names))):  # a login node has no name there
        return Elsewhere(primary)
    return RemoteAllocation(resolve_addresses(names), Srun(), virtual_gpus)


def _of_hosts(hosts: tuple[Host, ...], transport: Ssh, virtual_gpus: int) -> Allocation:
    names = transport.names_of(hosts)
    primary = hosts[0].name
    if not is_this_machine(names[primary]):
        raise AllocationError(
            f"the first host, {primary}, is the primary, but this is another machine: "
            f"start laggard there, or list this machine first"
        )
    return RemoteAllocation(resolve_addresses(names), transport, virtual_gpus)
