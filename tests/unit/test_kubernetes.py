"""The RayJob in the guide fits our copy of KubeRay's schema, and its entry point is a laggard command."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from laggard.resilience.command.cli import cli

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"
SCHEMA = yaml.safe_load((Path(__file__).parent / "rayjob_schema.yaml").read_text())


@pytest.fixture
def manifest() -> dict[str, Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 1
    return dict(yaml.safe_load(blocks[0]))


def test_the_manifest_fits_the_schema(manifest: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(manifest, SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["kind"], "RayJobs"),
        (["spec", "entryPoint"], "laggard"),
        (["spec", "backoffLimit"], "2"),
        (["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"], 0),
        (["spec", "rayClusterSpec", "workerGroupSpecs", 0, "template", "spec", "containers", 0, "name"], "Ray Worker"),
        (["spec", "rayClusterSpec", "authOptions", "mode"], "password"),
    ],
)
def test_the_schema_refuses_what_kuberay_would(manifest: dict[str, Any], path: list[Any], value: object) -> None:
    broken = copy.deepcopy(manifest)
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_the_entry_point_is_a_laggard_command_and_asks_for_no_more_pods_than_there_are(
    manifest: dict[str, Any],
) -> None:
    laggard, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    assert laggard == "laggard"
    options = cli.commands["run"].make_context("laggard", arguments).params
    (workers,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    assert options["nodes"] <= 1 + workers["replicas"]
    mounts = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert str(options["state_dir"]) in {mount["mountPath"] for mount in mounts}
