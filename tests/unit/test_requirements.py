"""What ``pyproject.toml`` requires is what the code imports, and the other way round."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import laggard

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Distributions that are not named like what is imported from them.
NAMES = {"pynvml": "nvidia-ml-py", "sklearn": "scikit-learn", "yaml": "pyyaml"}
CUPY = {"cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0"}
# It comes with ROCm, or a user's training script is written with it.
OF_THE_USER = {"amdsmi", "lightning", "ml-dtypes", "transformers"}
PROGRAMS = {"py-spy"}


def required(*extras: str) -> set[str]:
    """Return the distributions that some extras require; those of the package itself, if none is given."""
    listed = [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]
    return {re.split(r"[^\w-]", each)[0].lower() for each in listed or PROJECT["dependencies"]}


def modules_of_the_product() -> list[Path]:
    """Return its files; in a clone the folders in it are links."""
    package = Path(laggard.__file__).parent
    folders = [each.resolve() for each in package.iterdir() if each.is_dir()]
    return [*package.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]


def imported_by(files: Iterable[Path]) -> set[str]:
    """Return the distributions from which some modules import, anywhere in them."""
    found: set[str] = set()
    for file in files:
        found |= _imported_in(ast.parse(file.read_text())) - _beside(file)
    others = {name for name in found - sys.stdlib_module_names - {"laggard"} if not name.startswith("_")}
    distributions = {NAMES.get(name, name.lower().replace("_", "-")) for name in others}
    return distributions - {"cupy", "cupyx"} | CUPY if "cupy" in distributions else distributions


def _beside(file: Path) -> set[str]:
    """Return what a script finds in its own folder."""
    return {other.stem for other in file.parent.glob("*.py") if other != file}


def _imported_in(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            found |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
    return {name.partition(".")[0] for name in found}


def test_the_product_imports_what_it_and_its_extras_require_and_nothing_else() -> None:
    declared = required() | required("ray", "torch", "cuda12", "cuda13", "rocm")
    assert imported_by(modules_of_the_product()) == declared - PROGRAMS | OF_THE_USER


def test_examples_import_what_their_extras_require_and_nothing_else() -> None:
    imported = imported_by((ROOT / "examples").rglob("*.py"))
    assert required("examples", "plot") <= imported
    assert imported <= required() | required("examples", "plot", "ray", "torch") | OF_THE_USER
