"""Ray's own records of nodes and workers, read without becoming a driver (a driver would take part in the job)."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["HeadSilentError", "NodeDirectory"]

_SECRETS = ("RAY_AUTH_", "RAY_TLS_", "RAY_USE_TLS")
_ALIVE = 0
_TIMEOUT_S = 5.0


class HeadSilentError(RuntimeError):
    """Ray's head listens and does not answer."""


class NodeDirectory:
    """The nodes and workers that Ray's head knows.

    Parameters
    ----------
    address
        ``host:port`` of the head, which must be listening.
    environment
        The cluster's variables: the client finds its token through them.

    Raises
    ------
    HeadSilentError
        If the head does not answer in time.
    """

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        # The client reads where its token and its certificate are from this process's environment, once, when it is
        # loaded.
        os.environ.update({name: value for name, value in environment.items() if name.startswith(_SECRETS)})
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.exceptions import RpcError

        self._address = address
        try:
            self._client = GcsClient(address=address)
        except RpcError as error:
            raise HeadSilentError(f"Ray's head at {address} does not answer: {error}") from error

    def alive_addresses(self) -> set[str]:
        """Return the addresses of the nodes that are up; none where the head does not answer."""
        from ray.exceptions import RpcError

        try:
            nodes = self._client.get_all_node_info(timeout=_TIMEOUT_S)
        except RpcError:
            return set()
        return {node.node_manager_address for node in nodes.values() if node.state == _ALIVE}

    def workers_killed(self, since_s: float) -> bool:
        """Whether a worker process was ended by force since a moment in Unix time, and not by Ray."""
        from ray._raylet import GcsClientOptions, GlobalStateAccessor  # type: ignore[attr-defined]
        from ray.core.generated import common_pb2, gcs_pb2

        protocol: Any = common_pb2  # generated without types
        table: Any = gcs_pb2
        options = GcsClientOptions.create(self._address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        accessor = GlobalStateAccessor(options)  # never kept unconnected: its destructor would not return
        if not accessor.connect():
            return False
        forced = {protocol.WorkerExitType.SYSTEM_ERROR, protocol.WorkerExitType.NODE_OUT_OF_MEMORY}
        workers = (table.WorkerTableData.FromString(worker) for worker in accessor.get_worker_table())
        return any(
            not worker.is_alive
            and worker.worker_type == protocol.WorkerType.WORKER
            and worker.exit_type in forced
            and worker.end_time_ms >= since_s * 1000
            for worker in workers
        )
