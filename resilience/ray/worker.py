"""The environment of the program's workers on a Ray cluster that laggard did not start.

There a worker inherits none of our variables from its raylet. The job's runtime environment gives every worker the same
variables; those that differ between nodes are in a file that our agent writes on each node.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

HOOK = "laggard.resilience.ray.worker.prepare"
RUNTIME_DIR = "LAGGARD_RUNTIME_DIR"
NODE_FILE = "ray-node.json"
# Ray sets this for each worker, to the devices that the worker asked for.
_SET_BY_RAY = "CUDA_VISIBLE_DEVICES"


def node_file(node_id: str, variables: dict[str, str]) -> str:
    """Return the contents of a node's file."""
    kept = {name: value for name, value in variables.items() if name != _SET_BY_RAY}
    return json.dumps({"id": node_id, "variables": kept})


def prepare() -> None:
    """Set the variables of this worker's node; Ray calls this when a worker starts."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    for path in Path(os.environ[RUNTIME_DIR]).glob(f"*/{NODE_FILE}"):
        record = json.loads(path.read_text())
        if record["id"] == node_id:
            os.environ.update(record["variables"])
            return
    raise LookupError(f"the laggard job of this worker does not use its node, {node_id}")
