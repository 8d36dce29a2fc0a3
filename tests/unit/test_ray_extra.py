"""Ray is an extra, of a range of versions."""

from __future__ import annotations

import importlib.metadata
import pickle
import re
import tomllib
from pathlib import Path

import pytest

from laggard.collectors.errors import OLDEST_RAY, RayMissingError
from laggard.collectors.ray_actors import require_ray

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"ray>=(\d+)\.(\d+),<(\d+)\.(\d+)")


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
def test_a_missing_ray_and_one_that_is_too_old_are_distinguished(installed: str | None, message: str) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    with pytest.raises(RayMissingError) as caught:
        require_ray("walk", version)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == message  # noqa: S301
    assert caught.value.installed == installed


@pytest.mark.parametrize("installed", ["2.55.0", "2.60.0", "2.100.1", "3.0.0.dev0"])
def test_newer_versions_of_ray_are_accepted(installed: str) -> None:
    require_ray("", lambda _: installed)
