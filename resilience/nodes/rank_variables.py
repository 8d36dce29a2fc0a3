"""The variables by which the ranks of a program know their numbers and find each other. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from laggard.kvstore.client.connection import is_loopback
from laggard.kvstore.client.environment import LAUNCH, OWN_RANK
from laggard.kvstore.control import NodeRecord

HOST_FILE = "LAGGARD_HOSTFILE"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
OWN_ORDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({})
HOST_LIST = "LAGGARD_HOSTLIST"
RUN_ID, RESUME = "WANDB_RUN_ID", "WANDB_RESUME"
# Python writes to a pipe in blocks, and a block may be an hour's worth of lines.
_UNBUFFERED = "PYTHONUNBUFFERED"
_THREADS = "OMP_NUM_THREADS"
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# What a process does not know before it takes the place of a rank.
OF_RANK = (OWN_RANK, "RANK", "ROLE_RANK", "NODE_RANK", "GROUP_RANK")
_SAME_IN_EACH_LAUNCH = (_UNBUFFERED, _THREADS, _NCCL_ERRORS)


def launch_variables(
    nodes: Sequence[NodeRecord], port: int, launch: int, environ: Mapping[str, str], *, per_device: bool, run: str
) -> list[list[dict[str, str]]]:
    """Return, for each node, the variables of each rank on it, without the path of the host file."""
    if per_device:
        of_torchrun = device_variables(nodes, port, launch, environ)
        own = [[{**rank, OWN_RANK: rank["RANK"]} for rank in ranks] for ranks in of_torchrun]
    else:
        own = [[node_variables(i, len(nodes), nodes[0].address, port)] for i in range(len(nodes))]
    common = {LAUNCH: str(launch), _UNBUFFERED: environ.get(_UNBUFFERED, "1"), HOST_LIST: host_list(nodes)}
    number = itertools.count()
    return [[common | run_variables(run, next(number), environ) | rank for rank in ranks] for ranks in own]


def run_variables(run: str, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Weights & Biases goes on in the same run after each relaunch."""
    # Rank 0 has the job's run; a program that calls `wandb.init` in every rank has another run for each.
    if RESUME in environ:
        return {}
    own = run if rank == 0 else f"{run}-{rank}"
    return {RUN_ID: environ.get(RUN_ID) or own, RESUME: "allow"}


def in_order(node: NodeRecord, devices: Mapping[str, tuple[str, ...]]) -> NodeRecord:
    """Return a node with its devices in the order of their ranks, where that is not their own."""
    return replace(node, devices=devices.get(node.hostname, node.devices))


def shared_variables(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return those variables of a rank that all ranks on its node have in every launch, and the names of the others.

    Parameters
    ----------
    variables
        Those of :func:`launch_variables`.
    """
    shared = {name: value for name, value in variables.items() if name in _SAME_IN_EACH_LAUNCH}
    return shared, sorted({*variables, HOST_FILE} - shared.keys())


def node_variables(rank: int, n_nodes: int, address: str, port: int) -> dict[str, str]:
    """Return one node's variables: those that PyTorch documents, and the defaults of torchrun's options."""
    # `torchrun train.py` needs no `--nnodes`, `--node-rank` or `--master-addr`, since its options take their defaults
    # from `PET_*` (`torch.distributed.argparse_util`).
    ranks = {"NODE_RANK": str(rank), "NNODES": str(n_nodes), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return ranks | {f"PET_{name}": value for name, value in ranks.items()}


def device_variables(
    nodes: Sequence[NodeRecord], port: int, launch: int, environ: Mapping[str, str]
) -> list[list[dict[str, str]]]:
    """Return, for each device of each node, the variables that torchrun sets for the process of that device."""
    # The first rank listens for the others at `MASTER_PORT` itself, as there is no torchrun to do it.
    counts = [len(node.devices) for node in nodes]
    world = str(sum(counts))
    common = {
        "WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "NNODES": str(len(nodes)),
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"laggard-{port}",
        "TORCHELASTIC_RESTART_COUNT": str(launch),
        "TORCHELASTIC_MAX_RESTARTS": str(launch),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        _NCCL_ERRORS: environ.get(_NCCL_ERRORS, "1"),
    }
    variables: list[list[dict[str, str]]] = []
    first = 0
    for number, count in enumerate(counts):
        threads = {_THREADS: "1"} if count > 1 and _THREADS not in environ else {}
        own = {"NODE_RANK": str(number), "GROUP_RANK": str(number), "LOCAL_WORLD_SIZE": str(count), **threads}
        ranks = [{"LOCAL_RANK": str(j), "RANK": str(first + j), "ROLE_RANK": str(first + j)} for j in range(count)]
        variables.append([common | own | rank for rank in ranks])
        first += count
    return variables


def host_list(nodes: Sequence[NodeRecord]) -> str:
    """Return the names by which a launcher reaches the nodes, separated by commas."""
    return ",".join(map(_reached_by, nodes))


def host_file(nodes: Sequence[NodeRecord]) -> str:
    """Return the nodes as mpirun and DeepSpeed read them: a host and its number of devices on each line."""
    return "".join(f"{_reached_by(node)} slots={max(1, len(node.devices))}\n" for node in nodes)


def _reached_by(node: NodeRecord) -> str:
    return node.address if is_loopback(node.address) else node.hostname  # the names of virtual nodes are only ours
