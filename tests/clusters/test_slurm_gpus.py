"""Which GPUs a job's ranks see, on real Slurm daemons that have four devices on each node and a stand-in for NVML."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

SEEN = 'echo "node $NODE_RANK sees <$CUDA_VISIBLE_DEVICES>"'
PER_NODE = ("laggard", "--virtual-gpus=0", "--per-node", "sh", "-c", SEEN)


@pytest.fixture(scope="module")
def slurm_options() -> Mapping[str, Any]:
    return {"n_gpus": 4, "shares": dict(zip(NODES, ("shard:8", "shard:8", "mps:400"), strict=False))}


@pytest.fixture(scope="module")
def slurm(slurm: SlurmCluster, site: Site, fake_nvml: Path) -> SlurmCluster:
    driver = shutil.copytree(fake_nvml, site.folder / "nvml")
    driver.chmod(0o755)
    slurm.environment |= {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML_COUNT": "4"}
    return slurm


@pytest.mark.parametrize(
    ("options", "n_gpus"),
    [
        (["--gpus-per-node=2"], 4),
        (["--gres=gpu:2"], 4),
        (["--ntasks=4", "--gpus-per-task=1"], 4),
        (["--gpus=3"], 3),
        (["--gpus=4", "--ntasks-per-gpu=1"], 4),
        (["--exclusive"], 8),
    ],
    ids=str,
)
def test_the_ranks_of_a_program_share_all_gpus_of_the_job(
    slurm: SlurmCluster, watch: Watch, start: Start, options: Sequence[str], n_gpus: int
) -> None:
    job = start(slurm.network.login, slurm.environment, "salloc", "--quiet", "--nodes=2", *options, *PER_NODE)
    assert job.finish() == 0, job.output
    seen = dict(re.findall(r"node (\d) sees <(.*)>", job.output))
    assert seen.keys() == {"0", "1"}, job.output
    devices = [names.split(",") for names in seen.values() if names]
    assert devices == [[str(number) for number in range(len(names))] for names in devices]
    assert sum(map(len, devices)) == n_gpus, job.output
    watch.expect_nothing()


@pytest.mark.parametrize(("options", "nodes"), [(["--nodes=2", "--gres=shard:2"], 2), (["--gres=mps:50"], 1)], ids=str)
def test_a_job_with_a_share_of_a_gpu_sees_that_gpu_and_no_other(
    slurm: SlurmCluster, watch: Watch, start: Start, options: Sequence[str], nodes: int
) -> None:
    job = start(slurm.network.login, slurm.environment, "salloc", "--quiet", *options, *PER_NODE)
    assert job.finish() == 0, job.output
    seen = dict(re.findall(r"node (\d) sees <(.*)>", job.output))
    assert seen == {str(node): "0" for node in range(nodes)}, job.output
    watch.expect_nothing()


def test_a_batch_script_and_what_it_starts_see_the_same_gpus(
    slurm: SlurmCluster, watch: Watch, start: Start, work: Path
) -> None:
    command = f"laggard --virtual-gpus=0 --per-node sh -c '{SEEN}'"
    (work / "job.sh").write_text(f'#!/bin/bash\necho "the script sees <$CUDA_VISIBLE_DEVICES>"\nexec {command}\n')
    options = ("--nodes=2", "--ntasks=4", "--gpus-per-task=1", "--wait", "--output=output")
    job = start(slurm.network.login, slurm.environment, "sbatch", *options, "job.sh")
    assert job.finish() == 0, job.output
    assert re.findall(r"sees <(.*)>", job.output) == ["0,1"] * 3
    watch.expect_nothing()
