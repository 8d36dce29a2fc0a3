"""The leaf switch of each node: from the user's file, else from Slurm."""

from __future__ import annotations

from pathlib import Path

from laggard.resilience.allocation.slurm import slurm_leaves


def leaves_of_job(groups: Path | None) -> dict[str, str]:
    """Return the leaf switch of each node, as far as it is known."""
    return _labels_of_nodes(groups) or slurm_leaves()


def _labels_of_nodes(groups: Path | None) -> dict[str, str]:
    if groups is None:
        return {}
    from laggard.detectors.judging.groups import read_groups  # most jobs have none

    return {host: str(leaf) for host, leaf in read_groups(groups).items() if isinstance(host, str)}
