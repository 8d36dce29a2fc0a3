"""Virtual environments with laggard and packages from the index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import laggard

ROOT = Path(__file__).parents[2]
(PACKAGE,) = map(Path, laggard.__path__)
LINKED = ("kvstore", "telemetry", "collectors", "detectors", "resilience")
"""What lies at the top of the repository, and inside the package where it is installed."""
INSTALL_DEADLINE_S = 1500.0
NO_INDEX = "Could not find a version|Connection|Temporary failure|No matching distribution"


def environment_with(folder: Path, *requirements: str, python: str = sys.executable) -> Path:
    """Make a virtual environment with packages; return its interpreter. Skip the test if the index is out of reach.

    Where a requirement begins with ``laggard``, it is the package under test.
    """
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    wanted = [
        str(source()) + each.removeprefix("laggard") if each.startswith("laggard") else each for each in requirements
    ]
    done = subprocess.run(
        [interpreter, "-m", "pip", "install", "--quiet", *wanted],
        capture_output=True,
        text=True,
        timeout=INSTALL_DEADLINE_S,
    )
    if done.returncode and any(words in done.stderr for words in NO_INDEX.split("|")):
        pytest.skip(f"these packages are not to be had here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return interpreter


def source() -> Path:
    """Return a folder from which pip installs the package under test: the clone, or one put together beside a wheel."""
    if (ROOT / "src").exists():
        return ROOT
    folder = Path(tempfile.mkdtemp(prefix="laggard-source-"))
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    for name in LINKED:
        (folder / name).symlink_to(PACKAGE / name)
    (folder / "src" / "laggard").mkdir(parents=True)
    for each in PACKAGE.iterdir():
        place = folder / "src" / "laggard" / each.name
        if each.is_file():
            place.symlink_to(each)
        elif each.name not in {*LINKED, "__pycache__"}:
            shutil.copytree(each, place)
    return folder
