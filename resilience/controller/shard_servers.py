"""The shard servers of a job: what each node needs to run one, and starting them once a program asks for it.

They belong to the nodes, not to a launch: what they hold is there for the next launch.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.kvstore.checkpoints.settings import AUTHORITY, CERTIFICATE, SETTINGS_FILE, NodeShards
from laggard.kvstore.client.connection import is_loopback
from laggard.kvstore.control import NodeRecord
from laggard.resilience.nodes.cluster import Cluster
from laggard.system.certificates import Authority

COMMAND = (sys.executable, "-P", "-m", "laggard.kvstore.checkpoints.server")
NAME = "shards"


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """What the user has said about checkpoints."""

    memory_bytes: int | None = None  # how much of a node's memory they may use; None: most of `/dev/shm`
    directory: Path | None = None  # shared directory for a further copy; None: there is none


IN_MEMORY = CheckpointOptions()


class ShardServers:
    """The shard servers of one job."""

    def __init__(self, options: CheckpointOptions, nodes: Sequence[NodeRecord], run: str, folder: str) -> None:
        self._options = options  # the user's
        self._run = run  # id of this run of the job
        self._directory = None if options.directory is None else str(options.directory.absolute() / folder)
        self._n_virtual = sum(is_loopback(node.address) for node in nodes)
        self._authority = Authority()
        self.wanted = False  # whether a program has ever needed them

    def remove_directory(self) -> None:
        """Remove the job's folder in the shared directory, since its State is removed too."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def files(self, node: NodeRecord) -> dict[str, str]:
        """Return the private files that a node needs, by name."""
        sharers = self._n_virtual if is_loopback(node.address) else 1
        settings = NodeShards(
            node.hostname, node.address, self._run, sharers, self._options.memory_bytes, self._directory
        )
        issued = self._authority.issue(node.address)
        return {
            SETTINGS_FILE: settings.to_json(),
            CERTIFICATE: issued.certificate + issued.key,
            AUTHORITY: issued.authority,
        }

    def start(self, cluster: Cluster) -> None:
        """Start those that do not run yet, from now on in every launch: a program needs them."""
        self.wanted = True
        self.start_again(cluster)

    def start_again(self, cluster: Cluster) -> None:
        """Start those that do not run yet, if a program has ever needed them."""
        if self.wanted:
            for node in cluster.nodes.values():
                node.tasks.start_sidecar(NAME, [*COMMAND, node.path_of("")])
