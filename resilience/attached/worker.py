"""What a worker of the program needs to know, on a Ray cluster whose processes were not started by us.

There a worker inherits nothing of ours from its raylet. The job's runtime environment gives every worker the same
variables; those that differ from node to node it finds in a file that our agent wrote there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["HOOK", "NODE_FILE", "RUNTIME_DIR", "node_file", "prepare"]

HOOK = "resilience.attached.worker.prepare"
RUNTIME_DIR = "LAGGARD_RUNTIME_DIR"
NODE_FILE = "ray-node.json"
# Ray gives each worker the devices that it asked for.
_OF_RAY = "CUDA_VISIBLE_DEVICES"


def node_file(node_id: str, variables: dict[str, str]) -> str:
    """Return what is to stand in a node's file."""
    of_node = {name: value for name, value in variables.items() if name != _OF_RAY}
    return json.dumps({"id": node_id, "variables": of_node})


def prepare() -> None:
    """Set the variables of this worker's node; Ray calls this when a worker starts.

    Raises
    ------
    LookupError
        If the job does not use this node.
    """
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    for path in Path(os.environ[RUNTIME_DIR]).glob(f"*/{NODE_FILE}"):
        record = json.loads(path.read_text())
        if record["id"] == node_id:
            os.environ.update(record["variables"])
            return
    raise LookupError(f"the laggard job of this worker does not use its node, {node_id}")
