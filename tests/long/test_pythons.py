"""The quick tests on each other Python that is installed here and that the classifiers name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.long.environments import ROOT, environment_with
from tests.on_wheel import BESIDE_THE_PACKAGES

DEADLINE_S = 2400.0
RUNNING = "{}.{}".format(*sys.version_info)


def other_pythons() -> list[str]:
    """Return the versions in the classifiers, except the one that runs this test."""
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(_project()["classifiers"]))
    return [version for version in named if version != RUNNING]


def interpreter_of(version: str) -> str:
    """Return an interpreter of a version; skip the test if there is none."""
    candidates = [
        *(Path(folder, f"python{version}") for folder in os.environ["PATH"].split(os.pathsep)),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"),
    ]
    for candidate in candidates:
        if candidate.exists() and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip(f"there is no Python {version} here")


def _project() -> dict[str, list[str]]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


@pytest.mark.timeout(6000)
@pytest.mark.parametrize("version", other_pythons())
def test_the_quick_tests_pass(version: str, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "venv", "laggard[dev]", python=interpreter_of(version))
    # Not in the clone: the installed package is tested, and pytest writes nothing there.
    for name in BESIDE_THE_PACKAGES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "tests/unit", "tests/property"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
