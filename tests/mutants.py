"""Change one operator or constant at a time and see whether the tests notice: ``poe mutants``.

Mutants are drawn from every module without input and output: those that import nothing which reaches the outside.
Those that should notice are the unit and property tests that reach the module by imports, the nearest first. A mutant
is written into a copy of the source tree, in a temporary folder; the tests run there, and what fails or hangs has
noticed it. The sample is drawn with a seed, so the same command tests the same mutants. Texts, annotations and
decorators are left alone.

Mutants that no test can notice are listed, with the reason, in ``equivalent_mutants.toml``; they do not count.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import multiprocessing
import os
import queue
import random
import re
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("collectors", "detectors", "kvstore", "resilience", "telemetry", "src", "tests", "examples", "docs")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
SEED = 1
COUNT = 100
SCORE_WANTED = 0.85
DEADLINE_S = 300.0  # of the tests of one mutant

PACKAGES = ("collectors", "detectors", "kvstore", "resilience", "telemetry")
# What reaches files, processes, the network, devices or a clock; a lock does not.
OUTSIDE = {
    "asyncio", "click", "ctypes", "cupy", "fcntl", "http", "mmap", "multiprocessing", "os", "pathlib", "psutil", "pty",
    "pynvml", "ray", "redis", "resource", "rich", "select", "selectors", "shutil", "signal", "socket", "ssl",
    "starlette", "subprocess", "sys", "tempfile", "termios", "time", "torch", "urllib", "uvicorn",
}  # fmt: skip

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*",
}  # fmt: skip
OPERATOR = re.compile(r"\bis\s+not\b|\bnot\s+in\b|\b(?:is|in|and|or)\b|[<>=!]=|//|[<>+*/-]")

# Without a search for the smallest example, which takes long; and always the same examples.
PROFILE = """
from hypothesis import Phase, settings

settings.register_profile(
    "mutants", settings(derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate))
)
settings.load_profile("mutants")
"""


@dataclass(frozen=True)
class Mutant:
    file: str
    at: int
    end: int
    new: str
    line: int
    was: str
    becomes: str

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.at] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.was}\n    + {self.becomes}"


def _sources() -> Path:
    """Return where the source files are: beside an installed wheel there are the tests alone."""
    if (ROOT / "kvstore").is_dir():
        return ROOT
    import laggard  # not in the repository, where a changed copy of it is to be imported

    return Path(laggard.__path__[0])


SOURCES = _sources()
FACE = (ROOT / "src/laggard" if SOURCES == ROOT else SOURCES) / "__init__.py"


def mutants_of(file: str) -> list[Mutant]:
    """Return all mutants of a source file, in the order of its text."""
    source = (SOURCES / file).read_bytes()
    found = []
    for begin, end, new in edits(source):
        line_begin, until = source.rfind(b"\n", 0, begin) + 1, source.find(b"\n", end)
        was = source[line_begin:until].decode()
        becomes = (source[line_begin:begin] + new.encode() + source[end:until]).decode()
        line = source.count(b"\n", 0, begin) + 1
        found.append(Mutant(file, begin, end, new, line, " ".join(was.split()), " ".join(becomes.split())))
    return found


def edits(source: bytes) -> list[tuple[int, int, str]]:
    """Return where one thing can be changed: the first byte, the one after the last, and what to put there."""
    begins = [0]
    for text in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(text))
    return sorted(set(_edits(ast.parse(source), source, begins)))


def _edits(tree: ast.AST, source: bytes, begins: list[int]) -> Iterator[tuple[int, int, str]]:
    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

    def swap(left: ast.expr, right: ast.expr) -> Iterator[tuple[int, int, str]]:
        begin, end = span(left)[1], span(right)[0]
        between = re.sub(r"#.*", lambda comment: " " * len(comment[0]), source[begin:end].decode())
        if match := OPERATOR.search(between):
            yield begin + match.start(), begin + match.end(), SWAPS[" ".join(match[0].split())]

    for node in _kept(tree):
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right in itertools.pairwise(operands):
                    yield from swap(left, right)
            case ast.BoolOp():
                for left, right in itertools.pairwise(node.values):
                    yield from swap(left, right)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv()):
                yield from swap(node.left, node.right)
            case ast.AugAssign(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv()):
                yield from swap(node.target, node.value)
            case ast.UnaryOp(op=ast.USub() | ast.Not() as sign):
                begin = span(node)[0]
                yield begin, begin + (3 if isinstance(sign, ast.Not) else 1), ""
            case ast.Constant(value=bool() as value):
                yield *span(node), str(not value)
            case ast.Constant(value=int() as value):
                yield *span(node), str(value + 1)
            case ast.Constant(value=float() as value):
                yield *span(node), repr(2 * value or 1.0)


def _kept(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what runs, leaving out annotations, decorators and texts with values in them."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"} or (
            isinstance(node, ast.keyword) and node.arg in {"slots", "frozen", "repr", "strict"}
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _kept(child)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules that a file imports when it runs, and ``package.name`` for what may be one or a name in it."""
    found: set[str] = set()
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                skipped.update(node.body)
            case _ if node in skipped:
                pass
            case ast.Import():
                found.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str() as module):
                found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


@cache
def loaded_by(face: str) -> Mapping[str, str]:
    """Return what a package loads when it is first used, by its name there: the stub beside its file says so."""
    stub = (SOURCES / face).with_suffix(".pyi")
    return {name.rpartition(".")[2]: name for name in (imports_of(stub) if stub.is_file() else ())}


def file_of(name: str) -> str | None:
    """Return the file of ours that has what is imported by this name."""
    parts = name.split(".")[1:]
    if len(parts) == 1 and (later := loaded_by(str(FACE)).get(parts[0])):
        return file_of(later)
    for place in (parts, parts[:-1]):
        for file in ("/".join(place) + ".py", "/".join([*place, "__init__.py"])):
            if place and (SOURCES / file).is_file():
                later = loaded_by(file).get(parts[-1])
                return file_of(later) if later else file
    return None


@cache
def ours_in(path: Path) -> frozenset[str]:
    """Return the files of ours that a file imports, and what is behind a package's face."""
    names = [name for name in imports_of(path) if name.startswith("laggard.")]
    files = {file for name in names if (file := file_of(name))}
    for face in [file for file in files if file.endswith("__init__.py")]:
        files |= ours_in(SOURCES / face)
    return frozenset(files)


def pure_modules() -> list[str]:
    """Return the modules that import nothing which reaches the outside."""
    files = [path.relative_to(SOURCES) for package in PACKAGES for path in (SOURCES / package).rglob("*.py")]
    return sorted(
        str(file) for file in files if not OUTSIDE & {name.split(".")[0] for name in imports_of(SOURCES / file)}
    )


@cache
def files_testing(module: str) -> list[list[str]]:
    """Return the test files that reach a module: those that import it, those one import away, and the others."""
    steps: list[list[str]] = [[], [], []]
    for path in sorted(path for kind in ("unit", "property") for path in (ROOT / "tests" / kind).glob("test_*.py")):
        if distance := _distances(path).get(module):
            steps[min(distance, len(steps)) - 1].append(str(path.relative_to(ROOT)))
    return steps


@cache
def _distances(path: Path) -> dict[str, int]:
    """Return over how many imports a file reaches each module."""
    found: dict[str, int] = {}
    nearest = ours_in(path)
    for distance in itertools.count(1):
        if not nearest:
            break
        found |= dict.fromkeys(nearest, distance)
        nearest = frozenset().union(*(ours_in(SOURCES / file) for file in nearest)) - found.keys()
    return found


def sample(modules: Iterable[str], count: int, seed: int) -> list[Mutant]:
    everything = [mutant for module in modules for mutant in mutants_of(module)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["numpy", "scipy.special", "scipy.stats", "hypothesis", "pytest", "redis", "xdist"])


def _run_pytest(folder: Path, tests: list[str], output: Path) -> None:
    """Run tests in a process that has what they need from others, and nothing of ours."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    paths = [str(folder), str(folder / "src")]
    sys.path[:] = [*paths, *(path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT / "src"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    import pytest

    code = pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "mutants_profile", *tests])
    import laggard

    assert Path(str(laggard.__file__)).is_relative_to(folder), "the tests did not run on the copy"
    os._exit(code)


class Tree:
    """A copy of the source tree, in which one mutant at a time is tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skipped = shutil.ignore_patterns("__pycache__", "node_modules", ".hypothesis")
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skipped)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
            shutil.copy2(ROOT / name, folder / name)
        (folder / "mutants_profile.py").write_text(PROFILE)
        self._time = 1

    def passes(self, tests: Iterable[str], deadline_s: float | None = None) -> str | None:
        """Run tests; return None if they pass, else why not."""
        output = self.folder / "output.txt"
        child = FORKS.Process(target=_run_pytest, args=(self.folder, list(tests), output))
        child.start()
        child.join(deadline_s)
        if child.is_alive():
            assert child.pid is not None
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            return "it hangs"
        if child.exitcode == 0:
            return None
        text = output.read_text(errors="replace") if output.exists() else ""
        last = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return last[0] if last else f"pytest ended with {child.exitcode}: {text[-2000:]}"

    def test(self, mutant: Mutant, tests: Iterable[str], deadline_s: float) -> str | None:
        """Return what noticed a mutant, None if nothing did."""
        path = self.folder / mutant.file
        path.write_bytes(mutant.applied_to(path.read_bytes()))
        os.utime(path, (self._time, self._time))  # no byte code has this time
        self._time += 1
        try:
            return self.passes(tests, deadline_s)
        finally:
            shutil.copy2(ROOT / mutant.file, path)


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return the reasons why listed mutants cannot be noticed, by file and both lines."""
    listed = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {(each["file"], each["was"], each["becomes"]): each["reason"] for each in listed}


def stale(known: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return those listed as equivalent that the source does not have any more."""
    known = list(known)
    files = {file for file, _, _ in known if (SOURCES / file).exists()}
    possible = {(file, mutant.was, mutant.becomes) for file in files for mutant in mutants_of(file)}
    return [each for each in known if each not in possible]


def noticed(tree: Tree, mutant: Mutant) -> str | None:
    """Return what noticed a mutant, None if nothing did: the nearest tests first."""
    for tests in files_testing(mutant.file):
        if tests and (found := tree.test(mutant, tests, DEADLINE_S)):
            return found
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample ({SEED})")
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants in all ({COUNT})")
    parser.add_argument(
        "--only", metavar="PATH", action="append", default=[], help="modules below this; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (2)")
    options = parser.parse_args()
    modules = [file for file in pure_modules() if not options.only or file.startswith(tuple(options.only))]
    known = equivalents()
    drawn = sample(modules, options.count, options.seed)
    counted = [mutant for mutant in drawn if (mutant.file, mutant.was, mutant.becomes) not in known]
    trees: queue.Queue[Tree] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="laggard-mutants-") as folder:
        for number in range(options.jobs):
            trees.put(Tree(Path(folder) / str(number)))
        survivors = survivors_of(counted, trees, options.jobs)
    killed = len(counted) - len(survivors)
    print(
        f"{killed} of {len(counted)} noticed: {killed / max(1, len(counted)):.0%}, "
        f"{len(drawn) - len(counted)} equivalent, from {len(modules)} modules, seed {options.seed}"
    )
    for file, was, becomes in stale(known):
        print(f"not in the source any more, though listed as equivalent: {file}: {was}  ->  {becomes}")
    return 0 if killed >= SCORE_WANTED * len(counted) else 1


def survivors_of(mutants: list[Mutant], trees: queue.Queue[Tree], jobs: int) -> list[Mutant]:
    """Test mutants on copies of the tree, and print those that nothing noticed."""
    tree = trees.get()
    files = sorted({test for mutant in mutants for tests in files_testing(mutant.file) for test in tests})
    if failed := tree.passes(files):
        raise SystemExit(f"the tests fail without any change: {failed}")
    trees.put(tree)

    def survives(mutant: Mutant) -> bool:
        tree = trees.get()
        try:
            if noticed(tree, mutant):
                return False
        finally:
            trees.put(tree)
        print(f"  {mutant}", flush=True)
        return True

    with ThreadPoolExecutor(jobs) as pool:
        return [mutant for mutant, survived in zip(mutants, pool.map(survives, mutants), strict=True) if survived]


if __name__ == "__main__":
    sys.exit(main())
