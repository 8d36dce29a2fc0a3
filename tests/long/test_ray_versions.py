"""A job of two nodes, a lost node and a relaunch, with the oldest Ray that the extra takes and with the newest."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.long.environments import ROOT, environment_with

DEADLINE_S = 600.0
PROGRAM = """
import os, signal
import ray
from laggard import Job, State
from laggard.collectors.ray_actors import node_strategy

job, state = Job.current(), State.current()
ray.init(log_to_driver=False)

@ray.remote(num_gpus=1)
def where():
    return os.environ["LAGGARD_NODE"], os.environ["CUDA_VISIBLE_DEVICES"]

@ray.remote(num_cpus=0)
def kill_the_raylet():
    os.kill(os.getppid(), signal.SIGKILL)

places = [where.options(scheduling_strategy=node_strategy(node)).remote() for node in job.nodes for _ in range(2)]
nodes = [node for node, devices in ray.get(places)]
print("launch", job.launch, "with Ray", ray.__version__, "on", *nodes, flush=True)
state[f"launch{job.launch}"] = nodes
if not job.restarted:
    kill_the_raylet.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote()
    ray.get([where.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote() for _ in range(1000)])
    signal.pause()
print("kept", state["launch0"])
"""


def bounds() -> tuple[str, str]:
    """Return the requirements of the oldest and of the newest minor version in the range."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (requirement,) = extras["ray"]
    match = re.fullmatch(r"ray>=(\d+)\.(\d+),<(\d+)\.(\d+)", requirement)
    assert match
    major, oldest, _, end = match.groups()
    return f"ray=={major}.{oldest}.*", f"ray=={major}.{int(end) - 1}.*"


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("requirement", bounds())
def test_a_job_loses_a_node_and_is_relaunched(requirement: str, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "venv", "laggard[ray]", requirement)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *(python, "-m", "laggard", "--local-nodes=3", "--nodes=2", "--virtual-gpus=2", "--resilient"),
            *("--no-report", "program.py"),
        ],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    version = requirement.removeprefix("ray==").removesuffix(".*")
    assert re.search(rf"^launch 0 with Ray {version}\.\d+ on node1 node1 node2 node2$", done.stdout, re.MULTILINE)
    assert re.search(rf"^launch 1 with Ray {version}\.\d+ on node1 node1 node3 node3$", done.stdout, re.MULTILINE)
    assert "kept ['node1', 'node1', 'node2', 'node2']" in done.stdout
