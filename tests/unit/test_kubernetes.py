"""The example of a RayJob fits our copy of KubeRay's schema, and its entry point is a laggard command."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from laggard.resilience.command.cli import load_command

MANIFEST = Path(__file__).parents[2] / "examples" / "rayjob.yaml"
SCHEMA = yaml.safe_load((Path(__file__).parent / "rayjob_schema.yaml").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def manifest() -> dict[str, Any]:
    return dict(yaml.safe_load(MANIFEST.read_text()))


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


def mappings(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield every mapping of a manifest with its path, outer ones first."""
    if isinstance(tree, dict):
        yield path, tree
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, part in parts:
        yield from mappings(part, (*path, step))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def test_a_misspelt_field_is_refused_wherever_it_is(manifest: dict[str, Any]) -> None:
    fields = [(path, name) for path, mapping in mappings(manifest) for name in mapping]
    assert len(fields) > 50
    for path, name in fields:
        for misspelt in (name + "s", name[:-1], name.swapcase()):
            broken = copy.deepcopy(manifest)
            mapping = at(broken, path)
            mapping[misspelt] = mapping.pop(name)
            assert not VALIDATOR.is_valid(broken), (path, name)


def test_a_field_that_is_one_level_too_high_or_too_low_is_refused(manifest: dict[str, Any]) -> None:
    places = dict(mappings(manifest))
    for path, mapping in places.items():
        enclosing = [place for place in places if place == path[: len(place)] and place != path]
        inner = [place for place in places if place[: len(path)] == path and len(place) == len(path) + 1]
        for place in (*enclosing[-1:], *inner):
            for name in mapping.keys() - places[place].keys() - {*place[len(path) :]}:
                broken = copy.deepcopy(manifest)
                at(broken, place)[name] = copy.deepcopy(mapping[name])
                assert not VALIDATOR.is_valid(broken), (path, name)


def test_the_entry_point_watches_for_hangs_and_its_head_only_keeps_the_books(manifest: dict[str, Any]) -> None:
    assert "--hang-timeout auto" in manifest["spec"]["entrypoint"]
    head = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_the_entry_point_is_a_laggard_command_and_asks_for_no_more_pods_than_there_are(
    manifest: dict[str, Any],
) -> None:
    laggard, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    assert laggard == "laggard"
    options = load_command("run").make_context("laggard", arguments).params
    (workers,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"]
    assert options["nodes"] <= workers["replicas"]  # the head is none of them
    mounts = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert str(options["state_dir"]) in {mount["mountPath"] for mount in mounts}
