"""A callback with which Ray Train restarts its workers where laggard would relaunch the program (Ray 2.60 or newer).

::

    run_config = RunConfig(
        callbacks=[RayRestarts()], failure_config=FailureConfig(max_failures=3, max_preemption_failures=5)
    )
    with SlowGPUDetector():
        TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()

A verdict that asks for a restart becomes a preemption of Ray's: ``ray.train.get_preemption_info()`` tells the workers,
``PreemptionError`` counts towards ``max_preemption_failures``, and no worker is placed on the slow node any more.
A lost node is Ray's ``WorkerGroupError``, which counts towards ``max_failures``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Set
from typing import Any

import ray
import redis
from ray.train import PreemptionInfo
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.retry import is_passing
from laggard.kvstore.control import Control, LaunchRecord
from laggard.kvstore.state.local_state import is_outside_jobs
from laggard.resilience.decision.verdicts import believed

NODE_ID = "ray.io/node-id"
_log = logging.getLogger("laggard.ray_train")


class RayRestarts(WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]  # mypy does not read Ray Train
    """Turns verdicts into preemptions of Ray's, and tells laggard to leave lost nodes of this launch to Ray Train.

    Once the workers have no room without the slow node, or if their number is elastic, laggard is asked for a relaunch
    instead. In a program that was started without laggard it does nothing.

    Parameters
    ----------
    grace_s
        For how many seconds the workers go on after a verdict, to save a checkpoint; 0: they are restarted at once.
    """

    def __init__(self, *, grace_s: float = 30.0) -> None:
        if not grace_s >= 0:
            raise ValueError(f"grace_s is {grace_s!r}: give a number of seconds, at least 0")
        self._grace_s = grace_s
        self._verdicts: _Verdicts | None = None  # in Ray Train's controller; the callback is copied there
        self._workers: list[Any] = []
        self._n_workers = 0
        self._reserves: Mapping[str, float] = {}  # what each worker does
        self._is_elastic = False
        self._avoided: set[str] = set()  # IDs of Ray's nodes

    def after_controller_start(self, train_run_context: Any) -> None:
        """Begin to read verdicts, and tell laggard that lost nodes are Ray's."""
        scaling = train_run_context.scaling_config
        if isinstance(scaling.label_selector, list):
            raise TypeError("with RayRestarts, label_selector must be one for all workers, not a list")
        self._is_elastic = scaling.elasticity_enabled
        if not is_outside_jobs():
            self._verdicts = _Verdicts()
            self._verdicts.control.ask("recovers", [])

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> dict[str, str] | None:
        """Keep the workers off slow nodes, as long as there is room elsewhere: nodes may have been lost since."""
        if not self._has_room(num_workers, self._avoided):
            self._avoided.clear()
        if not self._avoided:
            return None
        return {**(scaling_config.label_selector or {}), NODE_ID: f"!in({','.join(sorted(self._avoided))})"}

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Take note of what the workers need."""
        self._n_workers = worker_group_context.num_workers
        self._reserves = worker_group_context.resources_per_worker

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Take note of the workers."""
        self._workers = worker_group.get_workers()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Look for verdicts, and tell the workers."""
        accused = self._verdicts.read() if self._verdicts is not None else {}
        new = {node_id: host for node_id, host in accused.items() if node_id not in self._avoided}
        ranks: dict[str, list[int]] = {}
        for worker in self._workers:
            if worker.metadata.node_id in new:
                ranks.setdefault(worker.metadata.node_id, []).append(worker.distributed_context.world_rank)
        if self._verdicts and ranks and not self._has_room(self._n_workers, self._avoided | new.keys()):
            self._verdicts.control.ask("reboot", sorted({new[node_id] for node_id in ranks}))
            return
        self._avoided |= new.keys()
        if not ranks:
            return
        _log.warning("%s slow: Ray Train restarts its workers elsewhere", ", ".join(sorted(new.values())))
        info = PreemptionInfo(int((time.time() + self._grace_s) * 1000), ranks)
        for worker in self._workers:
            worker.actor.mark_preempt.remote(info)

    def _has_room(self, n_workers: int, avoided: Set[str]) -> bool:
        """Return whether the workers can be placed off some nodes; Ray counts these in if it chooses the number."""
        if self._verdicts is None or not avoided:
            return True
        return not self._is_elastic and places(self._verdicts.nodes(), avoided, self._reserves) >= n_workers


class _Verdicts:
    """The verdicts of this launch, as they come."""

    def __init__(self) -> None:
        session = current_session()
        launch = session.environment.launch
        self.control = Control(session.client, session.endpoint, launch)
        self._launch: LaunchRecord = self.control.read_launch()
        self._last_id = self.control.last_request_id()

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return Ray's records of the launch's nodes that are up; others in a cluster are not for this job."""
        ours = {node.address for node in self._launch.nodes}
        known: list[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [node for node in known if node["Alive"] and node["NodeManagerAddress"] in ours]

    def read(self) -> dict[str, str]:
        """Return the host names of nodes that new verdicts want to be left, by the nodes' IDs."""
        judges = {self._launch.primary.hostname, self._launch.nodes[0].hostname}
        hosts: set[str] = set()
        try:
            for request_id, request in self.control.requests(self._last_id, 0):
                self._last_id = request_id
                if request.kind == "verdicts" and request.launch == self._launch.launch:
                    verdicts, _ = believed(request, judges)
                    hosts |= {verdict.host for verdict in verdicts if verdict.action == "restart"}
        except redis.RedisError as error:  # the state server is being restarted
            if not is_passing(error):
                raise
        addresses = {node.address: node.hostname for node in self._launch.nodes if node.hostname in hosts}
        return {
            node["NodeID"]: addresses[node["NodeManagerAddress"]]
            for node in (self.nodes() if hosts else ())
            if node["NodeManagerAddress"] in addresses
        }


def places(nodes: Iterable[Mapping[str, Any]], avoided: Set[str], worker: Mapping[str, float]) -> int:
    """Return how many workers there is room for on all nodes but the avoided ones. Pure."""
    needed = {name: amount for name, amount in worker.items() if amount}
    return sum(
        min((int(node["Resources"].get(name, 0) // amount) for name, amount in needed.items()), default=0)
        for node in nodes
        if node["NodeID"] not in avoided
    )
