"""Everything in Ray that is private: no other module may use it, and a test enforces that.

Ray changes these parts without notice. The oldest and the newest version that laggard supports are tested, and the
differences between versions are handled here.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_SECRETS = ("RAY_AUTH_", "RAY_TLS_", "RAY_USE_TLS")
_ALIVE = 0
_EXIT_CODE = re.compile(r"exit code (\d+)")  # with which a worker said that it ends
_TIMEOUT_S = 5.0
_DASHBOARD_AGENT_PORTS = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")


@dataclass(frozen=True, slots=True)
class KilledWorker:
    """A worker process that was killed, from the records of Ray's head."""

    address: str  # of its node
    pid: int  # its process id there
    ended_s: float  # when it ended (Unix time), and after how many seconds
    ran_s: float
    out_of_memory: bool  # whether Ray killed it, since its node was running out of memory
    exit_code: int | None  # None if Ray only knows that its connection was closed


class HeadClient:
    """Reads the records of Ray's head about nodes and workers without becoming a driver.

    A driver would take part in the job.
    """

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        # Ray reads the paths of its token and certificate from this process's environment, once, on import.
        os.environ.update({name: value for name, value in environment.items() if name.startswith(_SECRETS)})
        self._address = address  # `host:port` of the head, which must be listening
        self._client: Any = None

    def alive_addresses(self) -> set[str]:
        """Return the addresses of the nodes that are up, or none if the head does not answer."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.exceptions import RpcError

        try:
            self._client = self._client or GcsClient(address=self._address)
            nodes = self._client.get_all_node_info(timeout=_TIMEOUT_S)
        except RpcError:
            return set()
        return {node.node_manager_address for node in nodes.values() if node.state == _ALIVE}

    def killed_workers(self, since_s: float) -> list[KilledWorker]:
        """Return the worker processes that were killed since the given Unix time, and not because Ray meant to."""
        from ray._raylet import GcsClientOptions, GlobalStateAccessor  # type: ignore[attr-defined]
        from ray.core.generated import common_pb2, gcs_pb2

        protocol: Any = common_pb2  # generated without types
        table: Any = gcs_pb2
        options = GcsClientOptions.create(self._address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        accessor = GlobalStateAccessor(options)  # never kept unconnected: its destructor would not return
        if not accessor.connect():
            return []
        out_of_memory = protocol.WorkerExitType.NODE_OUT_OF_MEMORY
        killed = {protocol.WorkerExitType.SYSTEM_ERROR, out_of_memory}
        workers = (table.WorkerTableData.FromString(worker) for worker in accessor.get_worker_table())
        return [
            KilledWorker(
                worker.worker_address.ip_address,
                worker.pid,
                worker.end_time_ms / 1000,
                max(0.0, (worker.end_time_ms - worker.start_time_ms) / 1000),
                worker.exit_type == out_of_memory,
                int(code[1]) if (code := _EXIT_CODE.search(worker.exit_detail)) else None,
            )
            for worker in workers
            if not worker.is_alive
            and worker.worker_type == protocol.WorkerType.WORKER
            and worker.exit_type in killed
            and worker.end_time_ms >= since_s * 1000
        ]


def draining_nodes() -> dict[str, float]:
    """Return the IDs of the nodes that Ray drains, and until when (Unix time; 0: no limit); for a connected driver."""
    from ray._private.state import state

    found: dict[str, int] = state.get_draining_nodes()
    return {node_id: until_ms / 1000 for node_id, until_ms in found.items()}


def ping_head(address: str, timeout_s: float) -> None:
    """Return once the head at ``host:port`` answers; raise Ray's ``RpcError`` if it does not in time."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    GcsClient(address=address).get_all_node_info(timeout=timeout_s)


def ray_command() -> Callable[[Sequence[str]], None]:
    """Load the ``ray`` command line and return a function that runs it with the given arguments."""
    from ray.scripts import scripts

    return lambda arguments: scripts.cli(args=list(arguments))


def replace_dashboard_agent() -> None:
    """Make the raylets that this process starts run an idle process in place of the dashboard's agent."""
    # No job of ours has a dashboard. Its agent takes half a second of CPU time when a node starts, and some more while
    # the node is up.
    from ray._private import ray_constants, services

    compiled: Any = importlib.import_module("ray._raylet")
    start_raylet, command_of = services.start_raylet, services._build_python_executable_command_memory_profileable

    def start_without_agent(*given: Any, **named: Any) -> Any:
        arguments = inspect.signature(start_raylet).bind(*given, **named).arguments
        for port in _DASHBOARD_AGENT_PORTS:  # the raylet waits for these; -1 means that nothing listens
            compiled.persist_port(arguments["session_dir"], arguments["node_id"], getattr(compiled, port), -1)
        return start_raylet(*given, **named)

    def idle_command(component: str, *rest: Any, **named: Any) -> list[str]:
        if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return ["/bin/sh", "-c", "exec cat"]  # ignores the arguments that follow, and ends with the raylet
        return [*command_of(component, *rest, **named)]

    services.start_raylet = start_without_agent
    services._build_python_executable_command_memory_profileable = idle_command
