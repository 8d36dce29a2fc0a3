"""The leaf switches of a job's nodes are those of Slurm's topology."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters import slurm_daemons
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob
from tests.clusters.machines import Network
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import TOPOLOGY

pytestmark = pytest.mark.timeout(600)

SWITCHES = """\
SwitchName=leaf1 Nodes=node[1-2]
SwitchName=leaf2 Nodes=node3
SwitchName=spine Switches=leaf[1-2]
"""
# Prints what the nodes of its launch go by.
PROGRAM = """
    import os
    from laggard.kvstore.connection import current_session
    from laggard.kvstore.control import Control

    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    if os.environ["LAGGARD_NODE"] == launch.primary.hostname:
        print("leaves:", dict(sorted(launch.leaves.items())))
"""


@pytest.fixture(scope="module")
def slurm(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    require(*slurm_daemons.PROGRAMS)
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), network, topology=SWITCHES) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("groups", "leaves"),
    [
        ("", {"node1": "leaf1", "node2": "leaf1", "node3": "leaf2"}),
        ("node1: a\nnode2: b\nnode3: b\n", {"node1": "a", "node2": "b", "node3": "b"}),
    ],
    ids=["as Slurm says", "as the user says"],
)
def test_the_leaves_are_those_of_the_topology_unless_the_user_names_others(
    slurm: SlurmCluster, start: Callable[..., ClusterJob], tmp_path: Path, groups: str, leaves: dict[str, str]
) -> None:
    assert "SwitchName=leaf1" in slurm.run(*TOPOLOGY.split())
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "groups.yaml").write_text(groups)
    named = ("--groups=groups.yaml",) if groups else ()
    laggard = ("laggard", "--per-node", "--virtual-gpus=1", "--detect=slow-link", *named, "train.py")
    job = start(slurm.network.login, slurm.environment, "salloc", "--nodes=3", *laggard)
    assert job.finish() == 0, job.output
    assert f"leaves: {leaves}" in job.output, job.output
