"""Names of the nodes of an existing Ray cluster, and what its workers receive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laggard.resilience.command.options import JobOptions
from laggard.resilience.errors import UsageError
from laggard.resilience.ray.allocation import RayNode, records_of
from laggard.resilience.ray.attached_cluster import job_config
from laggard.resilience.ray.worker import node_file


def node(number: int, hostname: str, name: str) -> RayNode:
    return RayNode(f"id{number}", f"10.0.0.{number}", hostname, name, ("5", "GPU-7")[:number], head=number == 1)


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ([node(1, "pod-a", "10.0.0.1"), node(2, "pod-b", "10.0.0.2")], ["pod-a", "pod-b"]),
        ([node(1, "vm", "n1"), node(2, "vm", "n2")], ["n1", "n2"]),
        ([node(1, "vm", ""), node(2, "vm", "")], ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_nodes_get_the_first_kind_of_name_that_distinguishes_them(nodes: list[RayNode], names: list[str]) -> None:
    records = records_of(nodes, virtual_gpus=0)
    assert list(records) == ["id1", "id2"]
    assert [record.hostname for record in records.values()] == names
    assert [record.devices for record in records.values()] == [("5",), ("5", "GPU-7")]
    assert {record.devices for record in records_of(nodes, virtual_gpus=1).values()} == {("0",)}


def test_the_configuration_of_a_submitted_job_is_kept() -> None:
    brought = {"metadata": {"job": "1"}, "runtime_env": {"pip": ["x"], "env_vars": {"A": "1"}}}
    config = json.loads(job_config(Path("/run/l"), {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(brought)}))
    assert config["metadata"] == {"job": "1"}
    assert config["runtime_env"]["pip"] == ["x"]
    assert config["runtime_env"]["env_vars"] == {"A": "1", "LAGGARD_RUNTIME_DIR": "/run/l"}
    assert config["runtime_env"]["worker_process_setup_hook"] == "laggard.resilience.ray.worker.prepare"


def test_a_worker_keeps_the_devices_that_ray_gave_it() -> None:
    record = json.loads(node_file("id1", {"LAGGARD_NODE": "n1", "CUDA_VISIBLE_DEVICES": "0,1"}))
    assert record == {"id": "id1", "variables": {"LAGGARD_NODE": "n1"}}


def test_ray_is_found_by_its_variable_and_slurm_and_what_was_named_come_first() -> None:
    in_ray = {"RAY_ADDRESS": "10.0.0.1:6379"}
    assert JobOptions().manager(in_ray) == "ray"
    assert JobOptions().manager({**in_ray, "SLURM_JOB_ID": "1"}) == "slurm"
    assert JobOptions(wlm="local").manager(in_ray) == "local"
    assert JobOptions(local_nodes=3).manager(in_ray) == "local"
    assert JobOptions().manager({"RAY_ADDRESS": ""}) == "local"
    with pytest.raises(UsageError, match="--wlm=ray needs a Ray cluster"):
        JobOptions(wlm="ray").manager({})
