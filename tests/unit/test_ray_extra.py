"""Ray is an extra, of a range of versions; its private API is used in one module."""

from __future__ import annotations

import ast
import importlib.metadata
import pickle
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import laggard
from laggard.collectors import ray_actors
from laggard.collectors.errors import OLDEST_RAY, RayMissingError
from laggard.collectors.ray_actors import require_ray

ROOT = Path(__file__).parents[2]
(PACKAGE,) = map(Path, laggard.__path__)
PRIVATE_API = "resilience/ray/private_api.py"
# Ray's public interface, in so far as it is imported by module; whatever else is imported from ray is private.
PUBLIC = re.compile(r"ray(\.(__version__|(exceptions|train|util)(\..*)?))?")
REQUIREMENT = re.compile(r"ray>=(\d+)\.(\d+),<(\d+)\.(\d+)")


def imports_of(source: str) -> Iterator[str]:
    """Yield the modules that a source imports, by a statement or by name; the programs that it has in strings, too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" if alias.name.startswith("_") else module for alias in names)
            case ast.Attribute(value=ast.Name(id="ray"), attr=attribute) if attribute.startswith("_"):
                yield f"ray.{attribute}"
            case ast.Constant(str(text)):
                yield from re.findall(r"\bray\.(?:_|core|scripts)[\w.]*", text)


def private_imports(source: str) -> list[str]:
    return [name for name in imports_of(source) if name.partition(".")[0] == "ray" and not PUBLIC.fullmatch(name)]


def sources() -> list[tuple[str, Path]]:
    """Return all files of the package, of the benchmarks and the examples."""
    found = []
    for folder in ("collectors", "detectors", "kvstore", "resilience", "telemetry"):
        found += [(str(path.relative_to(PACKAGE)), path) for path in (PACKAGE / folder).rglob("*.py")]
    for folder in ("benchmarks", "examples"):
        found += [(str(path.relative_to(ROOT)), path) for path in (ROOT / folder).rglob("*.py")]
    return found


def test_only_one_module_uses_rays_private_api() -> None:
    users = {name for name, path in sources() if private_imports(path.read_text())}
    assert users == {PRIVATE_API}


def test_of_the_tests_only_the_rig_of_a_foreign_cluster_does() -> None:
    """It counts the free CPUs of each node, which Ray's public API does not report."""
    users = {path.name for path in (ROOT / "tests").rglob("*.py") if private_imports(path.read_text())}
    assert users - {Path(__file__).name} == {"raylets.py"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ray\nfrom ray.util.queue import Queue\nfrom ray.exceptions import RpcError", []),
        ("from ray._raylet import GcsClient", ["ray._raylet"]),
        ("from ray import _private", ["ray._private"]),
        ("import ray\nray._private.worker", ["ray._private"]),
        ("from ray.core.generated import gcs_pb2", ["ray.core.generated"]),
        ("PROGRAM = 'from ray._private.state import x'", ["ray._private.state"]),
        ("import_module('ray._raylet')", ["ray._raylet"]),
    ],
)
def test_what_is_private_is_seen(source: str, expected: list[str]) -> None:
    assert private_imports(source) == expected


def test_ray_is_needed_by_extras_alone_and_from_the_oldest_version_that_the_code_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith("ray")] == []
    (requirement,) = project["optional-dependencies"]["ray"]
    match = REQUIREMENT.fullmatch(requirement)
    assert match
    oldest, end = tuple(map(int, match.groups()[:2])), tuple(map(int, match.groups()[2:]))
    installed = tuple(int(part) for part in importlib.metadata.version("ray").split(".")[:2])
    assert oldest == OLDEST_RAY
    assert installed < end


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (None, "Ray is not installed: pip install 'laggard[ray]', or walk"),
        ("2.54.1", "Ray 2.54.1 is too old, the oldest that works is 2.55: pip install 'laggard[ray]', or walk"),
        ("1.99.0", "Ray 1.99.0 is too old, the oldest that works is 2.55: pip install 'laggard[ray]', or walk"),
    ],
)
def test_a_missing_ray_and_one_that_is_too_old_are_distinguished(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, message: str
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(ray_actors, "version", version)
    with pytest.raises(RayMissingError) as caught:
        require_ray("walk")
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == message  # noqa: S301
    assert caught.value.installed == installed


@pytest.mark.parametrize("installed", ["2.55.0", "2.60.0", "2.100.1", "3.0.0.dev0"])
def test_newer_versions_of_ray_are_accepted(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(ray_actors, "version", lambda _: installed)
    require_ray()
