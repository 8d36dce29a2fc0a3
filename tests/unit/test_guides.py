"""The programs in the guides run as printed; examples in docstrings give the results they show."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import laggard
from tests.local import fresh_local_state
from tests.torch_modules import is_for_missing_library

ROOT = Path(__file__).parents[2]


def programs_in(document: str) -> list[str]:
    """Return a document's Python blocks."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)


def imports_shown() -> list[tuple[str, str]]:
    """Return (module, name) of each name that a document or an example imports from laggard."""
    programs = [path.read_text() for path in ROOT.glob("examples/**/*.py")]
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]:
        programs += re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    return sorted(
        {
            (node.module, alias.name)
            for program in programs
            for node in ast.walk(ast.parse(program))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "laggard"
            for alias in node.names
        }
    )


def modules() -> list[str]:
    """Return the names of laggard's modules, without those for libraries that are not installed."""
    return [
        found.name
        for found in pkgutil.walk_packages(laggard.__path__, "laggard.")
        if not found.name.endswith("__main__") and not is_for_missing_library(found.name)
    ]


@pytest.mark.parametrize("number", range(len(programs_in("guides/developer.md"))))
def test_the_developers_programs_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = programs_in("guides/developer.md")[number]

    exec(compile(program, f"developer.md, program {number}", "exec"), {"__name__": "guide"})  # noqa: S102

    if "print(verdict.evidence)" in program:
        assert re.search(r"node1 gpu 7: 30 % slower than its 7 peers", capsys.readouterr().out)


def test_the_programs_about_checkpoints_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / "state.db"))
    monkeypatch.setattr(laggard.State, "current", fresh_local_state)

    for number, program in enumerate(programs_in("checkpoints.md")):
        exec(compile(program, f"checkpoints.md, program {number}", "exec"), {"__name__": "guide"})  # noqa: S102

    assert capsys.readouterr().out.endswith("[0:1000, 0:64] (1000, 64)\n")


def test_the_users_detector_of_the_guide_accuses_the_slow_host() -> None:
    (program,) = (program for program in programs_in("guides/developer.md") if "class TwiceAsSlow" in program)
    namespace: dict[str, object] = {}
    exec(program, namespace)  # noqa: S102
    detector = namespace["TwiceAsSlow"]
    assert isinstance(detector, type)

    data = {("node1", "0"): [1.0, 1.1], ("node2", "0"): [2.5, 2.3]}
    assert detector().analyze_data(data, None) == (True, ["node2"])
    assert detector().analyze_data({("node1", "0"): [1.0], ("node2", "0"): [1.5]}, None) == (False, [])


@pytest.mark.parametrize(("module", "name"), imports_shown())
def test_what_documents_and_examples_import_is_public(module: str, name: str) -> None:
    """No part of the path is private, and the module lists the name."""
    assert not any(part.startswith("_") for part in module.split("."))
    if is_for_missing_library(module):
        pytest.skip(f"{module} is for a library that is not installed here")
    found = importlib.import_module(module)
    assert name in getattr(found, "__all__", vars(found))


def has_examples(module: str) -> bool:
    """Return whether the source of a module, which is not imported, has examples in it."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return ">>>" in Path(found.origin).read_text()


def test_examples_in_docstrings_give_what_they_say() -> None:
    tried = failed = 0
    for name in filter(has_examples, modules()):
        found = doctest.testmod(importlib.import_module(name))
        tried, failed = tried + found.attempted, failed + found.failed
    assert tried > 0
    assert failed == 0
