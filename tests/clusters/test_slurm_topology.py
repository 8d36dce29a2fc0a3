"""The leaf switches of a job's nodes are those of Slurm's topology."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.jobs import ClusterJob
from tests.clusters.site import NODES
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import TOPOLOGY

pytestmark = pytest.mark.timeout(600)

FIRST, SECOND, THIRD, LAST = NODES

SWITCHES = """\
SwitchName=leaf1 Nodes=nid001-ib,nid002-ib
SwitchName=leaf2 Nodes=nid003-ib,nid007-ib
SwitchName=spine Switches=leaf[1-2]
"""
# Prints what the nodes of its launch go by.
PROGRAM = """
    import os
    from laggard.kvstore.client.connection import current_session
    from laggard.kvstore.control import Control

    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    if os.environ["LAGGARD_NODE"] == launch.primary.hostname:
        print("leaves:", dict(sorted(launch.leaves.items())))
"""


@pytest.fixture(scope="module")
def slurm_options() -> Mapping[str, Any]:
    return {"topology": SWITCHES}


@pytest.mark.parametrize(
    ("groups", "leaves"),
    [
        ("", "leaf1 leaf1 leaf2 leaf2"),
        (f"{FIRST}: a\n{SECOND}: b\n{THIRD}: b\n{LAST}: a\n", "a b b a"),
    ],
    ids=["as Slurm says", "as the user says"],
)
def test_the_leaves_are_those_of_the_topology_unless_the_user_names_others(
    slurm: SlurmCluster, start: Callable[..., ClusterJob], work: Path, groups: str, leaves: str
) -> None:
    assert "SwitchName=leaf1" in slurm.run(*TOPOLOGY.split())
    (work / "train.py").write_text(textwrap.dedent(PROGRAM))
    (work / "groups.yaml").write_text(groups)
    named = ("--groups=groups.yaml",) if groups else ()
    laggard = ("laggard", "--per-node", "--virtual-gpus=1", "--detect=slow-link", *named, "train.py")
    job = start(slurm.network.login, slurm.environment, "salloc", "--nodes=4", *laggard)
    assert job.finish() == 0, job.output
    assert f"leaves: {dict(zip(NODES, leaves.split(), strict=True))}" in job.output, job.output
