"""Build the wheel, install it into a folder of its own, and run the tests against it, outside of the source tree.

Tests that fail run once more, alone and in the same order, and the first that fails again fails the run.  So a test
that two busy processors kept from its deadline is printed as a failure, but does not count as one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1]
BESIDE_THE_PACKAGES = (
    "tests",
    "examples",
    "benchmarks",
    "docs",
    ".ci",
    ".github",
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "pyproject.toml",
)

DISTRIBUTIONS = "LAGGARD_TEST_DISTRIBUTIONS"
"""Names the folder of the packages that were built, for `tests/long/test_distributions.py`."""
TESTS_FAILED = 1
"""Pytest's exit code."""


def main(pytest_arguments: list[str]) -> int:
    """Return pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="laggard-wheel-") as directory:
        root, site = Path(directory, "root"), Path(directory, "site")
        root.mkdir()
        python("-m", "build", "--no-isolation", "--outdir", directory, str(SOURCE))
        (wheel,) = Path(directory).glob("*.whl")
        python("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
        for name in BESIDE_THE_PACKAGES:
            copy = shutil.copytree if (SOURCE / name).is_dir() else shutil.copy
            copy(SOURCE / name, root / name)
        environment = {**os.environ, "PYTHONPATH": str(site), DISTRIBUTIONS: directory}
        python("-c", f"import laggard; assert laggard.__file__.startswith({str(site)!r})", cwd=root, env=environment)
        subprocess.run([site / "bin" / "laggard", "--version"], check=True, env=environment)

        def pytest(*more: str) -> int:
            arguments = [sys.executable, "-m", "pytest", *pytest_arguments, *more]
            return subprocess.run(arguments, cwd=root, env=environment).returncode

        outcome = pytest()
        if outcome == TESTS_FAILED:
            print("\nThe tests that failed, once more and alone:", flush=True)
            outcome = pytest("--last-failed", "--last-failed-no-failures=none", "--numprocesses=0", "--maxfail=1")
        return outcome


def python(*arguments: str, cwd: Path = SOURCE, env: dict[str, str] | None = None) -> None:
    """Run this interpreter; raise if it fails."""
    subprocess.run([sys.executable, *arguments], check=True, cwd=cwd, env=env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
