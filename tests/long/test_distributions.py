"""The packages that would be published: the index would take them, and they hold what they should and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.on_wheel import DISTRIBUTIONS

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the wheel, which was built from the source package, and that package."""
    if DISTRIBUTIONS in os.environ:
        return Path(os.environ[DISTRIBUTIONS])
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
    return folder


def test_the_index_would_take_them(built: Path) -> None:
    files = [str(file) for file in (*built.glob("*.whl"), *built.glob("*.tar.gz"))]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_the_packages_and_nothing_beside_them(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.partition("/")[0] for name in names} == {"laggard", wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    inside = {name.partition("/")[2] for name in names}
    assert {"py.typed", "__init__.pyi", "demo.py", "kvstore/state/mapping.py", "resilience/command/cli.py"} <= inside
    assert len(inside) == len(names)  # no file twice
    assert not [name for name in names if "__pycache__" in name or "tests" in name]
    assert "License-File: LICENSE" in metadata
    assert "Author: laggard developers" in metadata
    # The page on the index has no files beside it.
    assert [link for link in re.findall(r"\]\(([^)]+)\)", metadata) if not link.startswith("https://")] == []
    assert "https://raw.githubusercontent.com/laggard/laggard/main/docs/images/demo.svg" in metadata


def test_the_source_package_can_be_worked_on(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "pyproject.toml", "SECURITY.md", "kvstore/state/mapping.py"}
    wanted |= {"examples/hello.py", "docs/README.md", "tests/conftest.py", "benchmarks/__main__.py"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("src/laggard/kvstore", ".venv"))]


def test_the_forms_for_issues_and_the_citation_can_be_read() -> None:
    forms = [yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    labels = [[field["attributes"]["label"] for field in form["body"]] for form in forms if "body" in form]
    assert len(labels) == 2
    assert all(len(set(each)) == len(each) for each in labels)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
    assert f"## {project['version']} ({citation['date-released']})" in (ROOT / "CHANGELOG.md").read_text()
    assert f"git tag v{project['version']} " in (ROOT / "CONTRIBUTING.md").read_text()
