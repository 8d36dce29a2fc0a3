"""Build the wheel, install it into a folder of its own, and run the tests against it, outside of the source tree."""

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
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
)


def main(pytest_arguments: list[str]) -> int:
    """Return pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="laggard-wheel-") as directory:
        root, site = Path(directory, "root"), Path(directory, "site")
        root.mkdir()
        python("-m", "build", "--wheel", "--no-isolation", "--outdir", directory, str(SOURCE))
        (wheel,) = Path(directory).glob("*.whl")
        python("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
        for name in BESIDE_THE_PACKAGES:
            copy = shutil.copytree if (SOURCE / name).is_dir() else shutil.copy
            copy(SOURCE / name, root / name)
        environment = {**os.environ, "PYTHONPATH": str(site)}
        python("-c", f"import laggard; assert laggard.__file__.startswith({str(site)!r})", cwd=root, env=environment)
        subprocess.run([site / "bin" / "laggard", "--version"], check=True, env=environment)
        return subprocess.run([sys.executable, "-m", "pytest", *pytest_arguments], cwd=root, env=environment).returncode


def python(*arguments: str, cwd: Path = SOURCE, env: dict[str, str] | None = None) -> None:
    """Run this interpreter; raise if it fails."""
    subprocess.run([sys.executable, *arguments], check=True, cwd=cwd, env=env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
