"""A Ray cluster that laggard did not start: agents run on its nodes, and nodes that a launch does not use are held."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation import Allocation
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import NodeDownError
from laggard.resilience.nodes.cluster import RAY_ADDRESS, Cluster, NodeFiles
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.notices import NotHeld, Notice
from laggard.resilience.nodes.program import JOB_CONFIG
from laggard.resilience.ray.allocation import RayAllocation
from laggard.resilience.ray.worker import HOOK, NODE_FILE, RUNTIME_DIR, node_file


def job_config(runtime_dir: Path, environ: Mapping[str, str]) -> str:
    """Return the job configuration that Ray passes to every worker of the program. Pure."""
    # It keeps what is configured already: a job submitted to Ray names the packages and the folder that it needs there.
    config: dict[str, Any] = json.loads(environ.get(JOB_CONFIG, "{}"))
    runtime_env = {"worker_process_setup_hook": HOOK, **config.get("runtime_env", {})}
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), RUNTIME_DIR: str(runtime_dir)}
    return json.dumps({**config, "runtime_env": runtime_env})


class AttachedCluster(Cluster):
    """A Ray cluster that is already running.

    Its Ray processes are neither started nor ended. Nodes that a launch does not use are held:
    nothing is placed on them.
    """

    def __init__(
        self,
        allocation: Allocation,
        directory: Path,
        setup: NodeFiles,
        changed: threading.Condition,
        *,
        ray: RayAllocation,
        per_node: bool,
    ) -> None:
        super().__init__(allocation, directory, setup, changed)
        self._ray = ray  # the allocation, which is that cluster
        self._per_node = per_node  # the program does not use Ray, so its nodes are held too
        self._not_held: list[Notice] = []
        self._missed: frozenset[str] = frozenset()

    def environment(self, node: NodeRecord) -> dict[str, str]:
        """Return the variables with which a process on a node finds its cluster, its job and its devices."""
        variables = super().environment(node)
        if self._per_node:
            return variables
        return variables | {RAY_ADDRESS: self._ray.address, JOB_CONFIG: job_config(self._directory, os.environ)}

    def finish_change(self, roster: Roster, launch: int) -> int:
        """Leave exactly the active hosts to the program, with no process of a launch before ``launch`` on any."""
        n_ended = super().finish_change(roster, launch)
        ids = {self._ray.ids[host]: host for host in roster.active}
        alive, missed = self._ray.driver.hold_all_but([] if self._per_node else list(ids))
        for dead in ids.keys() - alive:
            self.nodes[ids[dead]].ray.state = "ended"
            raise NodeDownError("it has left the Ray cluster", ids[dead])
        hosts = {node_id: host for host, node_id in self._ray.ids.items()}
        self._not_held += [Notice(hosts.get(node, node), NotHeld()) for node in sorted(missed - self._missed)]
        self._missed = missed
        return n_ended

    def join_next(self) -> NodeRecord | None:
        """Add the next of the nodes that have joined since, and return it; it has no agent yet."""
        while not self._ray.driver.joined.empty():
            if (record := self._ray.take_in(self._ray.driver.joined.get())) is not None:
                self._numbers[record.hostname] = len(self._numbers) + 1
                return record
        return None

    def leaving(self) -> dict[str, NodeWord]:
        """Return the hosts that Ray drains, and until when."""
        draining = self._ray.driver.draining
        found = {host: draining[id_] for host, id_ in self._ray.ids.items() if id_ in draining}
        return {host: NodeWord("Ray", host, "draining", until_s=until_s) for host, until_s in found.items()}

    def notices(self) -> list[Notice]:
        """Return what is new to tell the user about the nodes."""
        notices, self._not_held = self._not_held, []
        return super().notices() + notices

    def _files(self, node: NodeRecord) -> dict[str, str]:
        variables = self.environment(node)
        return {**super()._files(node), NODE_FILE: node_file(self._ray.ids[node.hostname], variables)}

    def _is_lost(self, node: Node) -> bool:
        return super()._is_lost(node) or node.ray.state == "ended"
