"""What no other linter looks at: what documents say of the files here, and what sources may not do.

``poe lint`` runs it on the source tree.  It prints a line for each finding.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kvstore", "telemetry", "collectors", "detectors", "resilience")
PRODUCT = (*PACKAGES, "src/laggard")
FOLDERS = (*PACKAGES, "benchmarks", "examples", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MAX_WORDS = 60_000
# What a test replaces in a module, it knows about its inside; of a hundred tests so many may do so.
MAX_PATCHES = 3
PATCHES = {"setattr", "setitem", "delattr", "patch", "object", "dict"}  # of monkeypatch and mock

# Ray's public interface, in so far as it is imported by module; whatever else is imported from ray is private.
PUBLIC_RAY = re.compile(r"ray(\.(__version__|(data|exceptions|train|tune|util)(\..*)?))?")
# The one module that uses the rest, the cluster tests' count of each node's free CPUs, and the tests of this script.
USES_PRIVATE_RAY = {"resilience/ray/private_api.py", "tests/clusters/raylets.py", "tests/unit/test_lint_documents.py"}

# Python puts the working directory, or the script's own folder, first on its path unless told not to.
KEEPS_THE_FOLDER_OUT = {"-P", "-I"}
# The user's own program, a file or a module, which may import what lies beside it.
USERS_PROGRAM = {"sys.executable, program, *arguments", "sys.executable, '-m', name, *arguments"}

# Distributions that are not named like what is imported from them.
NAMES = {"pynvml": "nvidia-ml-py", "sklearn": "scikit-learn", "yaml": "pyyaml"}
CUPY = {"cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0"}
# It comes with ROCm, or a user's training script is written with it.
OF_THE_USER = {"lightning", "ml-dtypes", "transformers"}
OF_AN_EXAMPLE = {"jax"}
PROGRAMS = {"py-spy"}


def findings() -> Iterator[str]:
    """Yield all findings."""
    yield from readme()
    for document in DOCUMENTS:
        yield from links(document)
        yield from files_named(document)
    yield from words()
    yield from words_of_the_account()
    for path in python_files(*FOLDERS, "src/laggard"):
        yield from private_ray(path)
    for path in python_files(*PRODUCT):
        yield from open_interpreters(name_of(path), tree_of(path))
        yield from taken_wordings(path)
    yield from requirements()
    yield from unread_metrics()
    yield from patches()


# What documents say


def readme() -> Iterator[str]:
    """Look at the README's first commands: CI runs both, neither is silent, and the first is the main job."""
    lines = (ROOT / "README.md").read_text().splitlines()
    indented = [line.strip() for line in lines if line.startswith("    ")]
    script = (ROOT / ".ci" / "run").read_text()
    reading = re.findall(r"^mapfile -t commands < <\((.*)\)$", script, re.MULTILINE)[0]
    run = subprocess.run(["bash", "-c", reading], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if run.splitlines() != indented[:2]:
        yield f".ci/run: reads {run.splitlines()} as the README's first commands, which are {indented[:2]}"
    if re.findall(r'^as_user "\$\{commands\[(\d)\]\}"$', script, re.MULTILINE) != ["0", "1"]:
        yield ".ci/run: does not run the README's first two commands, one after the other"
    commands = [line for line in indented if line.startswith("python3")]
    yield from (f"README.md: is silent: {command}" for command in commands if "-q" in command.split())
    for part in ("--local-nodes=3", "--nodes=2", "--resilient", "--exhaust-resources", "examples/slow_gpu.py --plot"):
        if part not in commands[0]:
            yield f"README.md: the first command has no {part}"


def links(document: Path) -> Iterator[str]:
    """Look for links to files and sections that do not exist."""
    for target, section in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", document.read_text()):
        page = (document.parent / target).resolve() if target else document
        if "://" in target:
            continue
        if not page.exists():
            yield f"{name_of(document)}: links to {target}, which does not exist"
        elif section and section not in sections_of(page):
            yield f"{name_of(document)}: links to a section {target}#{section}, which does not exist"


@cache
def sections_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files_named(document: Path) -> Iterator[str]:
    """Look for names of files that do not exist; a name may have a star."""
    for name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.*]*)`", document.read_text()):
        if not any(ROOT.glob(name.rstrip("/"))):
            yield f"{name_of(document)}: names {name}, which does not exist"


def words() -> Iterator[str]:
    """Keep the documents short enough to be read."""
    count = sum(len(document.read_text().split()) for document in DOCUMENTS)
    if count > MAX_WORDS:
        yield f"the documents have {count} words: at most {MAX_WORDS}"


def words_of_the_account() -> Iterator[str]:
    """Look for first words of an account's lines that the operator's guide does not explain."""
    guide = (ROOT / "docs" / "guides" / "operator.md").read_text()
    explained = set(re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE))
    source = "".join(path.read_text() for path in python_files("resilience"))
    for word in sorted(set(re.findall(r'\.tell\(\s*"(\w+)"', source)) - explained):
        yield f"docs/guides/operator.md: does not explain the word {word} of an account"


# What sources may not do


def private_ray(path: Path) -> Iterator[str]:
    """Look for uses of Ray's private interface."""
    if name_of(path) not in USES_PRIVATE_RAY:
        yield from (f"{name_of(path)}: uses {name}, which is private to Ray" for name in private_ray_in(tree_of(path)))


def private_ray_in(tree: ast.Module) -> list[str]:
    """Return what a source imports of Ray's private interface, also in the programs that it has in strings."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                found += [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found += [f"{module}.{alias.name}" if alias.name.startswith("_") else module for alias in names]
            case ast.Attribute(value=ast.Name(id="ray"), attr=attribute) if attribute.startswith("_"):
                found.append(f"ray.{attribute}")
            case ast.Constant(str(text)):
                found += re.findall(r"\bray\.(?:_|core|scripts)[\w.]*", text)
    return [name for name in found if name.partition(".")[0] == "ray" and not PUBLIC_RAY.fullmatch(name)]


def open_interpreters(name: str, tree: ast.Module) -> Iterator[str]:
    """Look for interpreters of helper processes that could import from the user's folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            given = [ast.unparse(word) for word in node.elts]
            options = {given[at + 1].strip("'") for at, word in enumerate(given[:-1]) if word == "sys.executable"}
            if options - KEEPS_THE_FOLDER_OUT and ", ".join(given) not in USERS_PROGRAM:
                yield f"{name}:{node.lineno}: an interpreter without -P or -I may import from the user's folder"


def taken_wordings(path: Path) -> Iterator[str]:
    """Look for functions taken out of a wording: a test that replaces the wordings would not reach them."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("wording"):
            yield f"{name_of(path)}:{node.lineno}: import the module {node.module}, not what is in it"


def requirements() -> Iterator[str]:
    """Compare what pyproject.toml requires with what is imported."""
    product = imported_by(python_files(*PRODUCT))
    declared = required() | required("ray", "torch", "cuda12", "cuda13", "rocm")
    wanted = declared - PROGRAMS | OF_THE_USER
    examples, of_examples = imported_by(python_files("examples")), required("examples", "plot")
    allowed = required() | required("examples", "plot", "ray", "torch") | OF_THE_USER | OF_AN_EXAMPLE
    for name in sorted((product - wanted) | (examples - allowed)):
        yield f"pyproject.toml: {name} is imported and not required"
    for name in sorted((wanted - product) | (of_examples - examples)):
        yield f"pyproject.toml: {name} is required and not imported"


def required(*extras: str) -> set[str]:
    """Return the distributions that some extras require; those of the package itself, if none is given."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [each for extra in extras for each in project["optional-dependencies"][extra]]
    return {re.split(r"[^\w-]", each)[0].lower() for each in listed or project["dependencies"]}


def imported_by(files: Iterable[Path]) -> set[str]:
    """Return the distributions from which some modules import, anywhere in them."""
    found: set[str] = set()
    for file in files:
        found |= _imported_in(tree_of(file)) - {other.stem for other in file.parent.glob("*.py") if other != file}
    others = {name for name in found - sys.stdlib_module_names - {"laggard"} if not name.startswith("_")}
    distributions = {NAMES.get(name, name.lower().replace("_", "-")) for name in others}
    return distributions - {"cupy", "cupyx"} | CUPY if "cupy" in distributions else distributions


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


def unread_metrics() -> Iterator[str]:
    """Look for metrics of the catalogue that nothing reads."""
    catalogue = tree_of(ROOT / "telemetry" / "catalogue.py")
    names = {
        node.args[0].value
        for node in ast.walk(catalogue)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Metric" and node.args
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }
    files = [path for path in python_files("collectors", "telemetry") if path.name != "catalogue.py"]
    source = "".join(path.read_text() for path in files)
    in_one_line = {"pressure_cpu", "pressure_memory", "pressure_io"}
    if not names:
        yield "telemetry/catalogue.py: no metric is found in it"
    for name in sorted(name for name in names - in_one_line if f'"{name}"' not in source):
        yield f"telemetry/catalogue.py: nothing reads {name}"


def patches() -> Iterator[str]:
    """Count what tests replace in modules, and look for names of ours in texts, which no other linter would see."""
    nodes = [(path, node) for path in python_files("tests") for node in ast.walk(tree_of(path))]
    tests = [node for _, node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    found = [(path, node) for path, node in nodes if isinstance(node, ast.Call) and is_patch(node.func)]
    if 100 * len(found) > MAX_PATCHES * len(tests):
        yield f"{len(tests)} tests have {len(found)} patches: at most {MAX_PATCHES} in 100; pass it as an argument"
    for path, node in found:
        match node.args:
            case [ast.Constant(str(target)), *_] if target.startswith("laggard."):
                yield f"{name_of(path)}:{node.lineno}: patches {target}, which should be an argument"


def is_patch(function: ast.expr) -> bool:
    """Return whether a call replaces something in a module or an object; the environment is no such thing."""
    return isinstance(function, ast.Attribute) and (
        function.attr in PATCHES and ast.unparse(function.value) in {"monkeypatch", "mock", "mock.patch", "patch"}
    )


# Files


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below some folders, without following links."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def main(look: Callable[[], Iterator[str]] = findings) -> int:
    """Print all findings; return 1 if there is one."""
    found = list(look())
    for finding in found:
        print(finding)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
