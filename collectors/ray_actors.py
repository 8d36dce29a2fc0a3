"""Start a helper process on each node of the launch, with Ray. The only module of this package that needs Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from laggard.collectors.errors import OLDEST_RAY, NoClusterError, RayMissingError, UnknownNodeError
from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.control import NodeRecord

RESTART_WAIT_S = 5.0


def require_ray(alternative: str = "", version_of: Callable[[str], str] = version) -> None:
    """Check that Ray is installed, without loading it."""
    try:
        installed = version_of("ray")
    except PackageNotFoundError:
        raise RayMissingError(None, alternative) from None
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST_RAY:
        raise RayMissingError(installed, alternative)


class NodeActors:
    """Helper processes, one per node."""

    def __init__(self, actors: Mapping[str, Any]) -> None:
        self._actors = actors  # Ray's handle of each, by host name
        self._started = {host: actor.__ray_ready__.remote() for host, actor in actors.items()}

    def stop(self) -> None:
        """End them, without waiting."""
        import ray

        if ray.is_initialized():
            for actor in self._actors.values():
                ray.kill(actor)

    def failure_on(self, host: str) -> str:
        """Return why the process of a host could not start, in one line; empty if it could, or has not tried yet."""
        import ray

        if host not in self._started or not ray.wait([self._started[host]], timeout=0)[0]:
            return ""
        try:
            ray.get(self._started[host])
        except ray.exceptions.RayError as error:  # with the traceback of the process in it
            return str(error).strip().splitlines()[-1].strip()
        return ""


def connect() -> None:
    """Join the job's Ray cluster, unless this process has already joined it."""
    if not os.environ.get("RAY_ADDRESS"):  # Ray would start a cluster of its own
        raise NoClusterError
    require_ray()
    import ray

    if not ray.is_initialized():
        ray.init()


def node_strategy(node: NodeRecord) -> Any:
    """Return the scheduling strategy that places a task or an actor on a node.

    Raises
    ------
    UnknownNodeError
        If the node is not in the Ray cluster.
    RayMissingError
        If Ray is not installed here.
    """
    require_ray()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for known in ray.nodes():  # type: ignore[no-untyped-call]
        if known["Alive"] and known["NodeManagerAddress"] == node.address:
            return NodeAffinitySchedulingStrategy(known["NodeID"], soft=False)
    raise UnknownNodeError(node.hostname, node.address)


def _on_its_node(actor_class: type) -> type:
    """Return the same class, with its node's devices as a first argument."""
    # Ray may hide the devices from an actor that reserves none. When Ray starts it again, it waits first: one that dies
    # at once must keep nobody busy.

    def begin(self: Any, devices: Sequence[str], *arguments: object) -> None:
        import ray

        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        # Ray's own word on whether it is a restart comes with a warning to the user.
        name = f"actor-{ray.get_runtime_context().get_actor_id()}"
        mark = JobEnvironment.current().endpoint_file.parent / name
        if mark.exists():
            time.sleep(RESTART_WAIT_S)
        mark.touch()
        super(actor_class_with_wait, self).__init__(*arguments)

    actor_class_with_wait: Any = type(actor_class.__name__, (actor_class,), {"__init__": begin})
    return actor_class_with_wait  # type: ignore[no-any-return]


def start_on_every_node(nodes: Sequence[NodeRecord], actor_class: type, *arguments: object) -> NodeActors:
    """Start an actor of a plain class on each node; it reserves no CPU and no GPU. Ray starts it again if it dies."""
    connect()
    import ray

    remote: Any = ray.remote(_on_its_node(actor_class))
    actors = {}
    for node in nodes:
        placement = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": node_strategy(node)}
        actors[node.hostname] = remote.options(**placement, max_restarts=-1).remote(node.devices, *arguments)
    return NodeActors(actors)
