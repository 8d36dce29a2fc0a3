"""A Ray cluster that is not ours: its nodes carry our agents, and those that a launch does not use are held."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kvstore.control import NodeRecord
from resilience.allocation import Allocation
from resilience.allocation.ray import RayAllocation
from resilience.attached.worker import HOOK, NODE_FILE, RUNTIME_DIR, node_file
from resilience.cluster import RAY_ADDRESS, Cluster, NodeDownError, NodeFiles
from resilience.node import Node
from resilience.program import JOB_CONFIG

__all__ = ["AttachedCluster", "job_config"]


def job_config(runtime_dir: Path, environ: Mapping[str, str]) -> str:
    """Return what Ray is to give to every worker of the program, beside what it was told already. Pure.

    Who submits a job to Ray says there which packages and which folder the job needs.
    """
    config: dict[str, Any] = json.loads(environ.get(JOB_CONFIG, "{}"))
    runtime_env = {"worker_process_setup_hook": HOOK, **config.get("runtime_env", {})}
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), RUNTIME_DIR: str(runtime_dir)}
    return json.dumps({**config, "runtime_env": runtime_env})


class AttachedCluster(Cluster):
    """A Ray cluster that runs already.

    Nothing of it is started or ended. Whatever the launch does not use is held, so that it is given to nobody.

    Parameters
    ----------
    allocation, directory, setup, news
        As for :class:`Cluster`.
    ray
        The allocation, which is that cluster's.
    per_node
        The program does not use Ray, so its nodes are held, too.
    """

    # What Ray carries comes late where processors are scarce. A node that is gone is told of by Ray itself.
    silent_node_s: ClassVar[float] = 15.0

    def __init__(
        self,
        allocation: Allocation,
        directory: Path,
        setup: NodeFiles,
        news: threading.Condition,
        *,
        ray: RayAllocation,
        per_node: bool,
    ) -> None:
        super().__init__(allocation, directory, setup, news)
        self._ray = ray
        self._per_node = per_node
        self._to_tell: list[str] = []
        self._missed: frozenset[str] = frozenset()

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables with which a process on a node finds its cluster, its job and its devices."""
        variables = super().environment(node)
        if self._per_node:
            return variables
        return variables | {RAY_ADDRESS: self._ray.address, JOB_CONFIG: job_config(self._directory, os.environ)}

    def finish_change(self, active: Sequence[str], launch: int) -> int:
        """Leave exactly the given hosts to the program, with no process of a launch before ``launch`` on any."""
        swept = super().finish_change(active, launch)
        ids = {self._ray.ids[host]: host for host in active}
        alive, missed = self._ray.gate.hold_all_but([] if self._per_node else list(ids))
        for dead in ids.keys() - alive:
            self.nodes[ids[dead]].give_up()
            raise NodeDownError(f"{ids[dead]} has left the Ray cluster")
        hosts = {node_id: host for host, node_id in self._ray.ids.items()}
        self._to_tell += [
            f"{hosts.get(node, node)} could not be held: others use it, and the program may be given what they leave"
            for node in sorted(missed - self._missed)
        ]
        self._missed = missed
        return swept

    def notices(self) -> list[str]:
        """Return what the user should hear of the nodes, once."""
        told, self._to_tell = self._to_tell, []
        return super().notices() + told

    def _files(self, node: NodeRecord) -> dict[str, str]:
        variables = self.environment(node)
        return {**super()._files(node), NODE_FILE: node_file(self._ray.ids[node.hostname], variables)}

    def _is_lost(self, node: Node) -> bool:
        return super()._is_lost(node) or node.ray == "ended"
