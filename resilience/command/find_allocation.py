"""Finds the allocation that the options and the environment specify."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from laggard.collectors.device import gpu_names
from laggard.collectors.ray_actors import require_ray
from laggard.resilience.allocation.base import Allocation
from laggard.resilience.allocation.host_files import Host, hosts_of_lsf, hosts_of_pbs, named_hosts
from laggard.resilience.allocation.joined import JoinedAllocation
from laggard.resilience.allocation.launchers import ask_launcher
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.allocation.network import address_of_first, is_this_machine, resolve_addresses
from laggard.resilience.allocation.place import COMPLETION_INDEX, FIRST_NODE, SECRET_VARIABLE, JoinSecret, place_in
from laggard.resilience.allocation.pod import Pod
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.allocation.slurm import Srun, check_runs_once, slurm_node_names
from laggard.resilience.allocation.ssh import Ssh, transport_of_lsf
from laggard.resilience.command.member import Member
from laggard.resilience.command.options import JobOptions
from laggard.resilience.controller.controller import ENDING_S
from laggard.resilience.errors import AllocationError
from laggard.resilience.ray.allocation import RayAllocation


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The primary node is in this Slurm job, but it is not this machine."""

    primary: str


def find_allocation(options: JobOptions, environ: Mapping[str, str] = os.environ) -> Allocation | Elsewhere | Member:
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
        case "join":
            return _of_copies(options, environ)
        case "local":
            gpus = () if options.virtual_gpus else gpu_names()
            return LocalAllocation(options.local_nodes or 1, options.virtual_gpus, gpus)


def _of_copies(options: JobOptions, environ: Mapping[str, str]) -> Allocation | Member:
    """Return the allocation if this copy of the command is the first one, else what the others do."""
    file = options.join_secret_file
    source = SECRET_VARIABLE if file is None else f"--join-secret-file={file}"
    secret = JoinSecret.of_text(environ.get(SECRET_VARIABLE, "") if file is None else file.read_text(), source)
    is_pod = COMPLETION_INDEX in environ
    told = (
        {}
        if options.join or is_pod or any(map(environ.get, FIRST_NODE))
        else ask_launcher(environ, options.wait_for_nodes_s)
    )
    place = place_in({**told, **environ}, options.join, socket.getfqdn() if is_pod else "")
    save_s = options.grace_s + ENDING_S
    if place.index:
        return Member(place, secret, options.wait_for_nodes_s, save_s, finds_gpus=not options.virtual_gpus)
    manager = Pod(save_s) if is_pod else None
    address = address_of_first(place.host)
    return JoinedAllocation(place, address, secret, options.virtual_gpus, options.wait_for_nodes_s, manager)


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
