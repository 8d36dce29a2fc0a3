"""The documents are accurate: their commands are those that CI runs, their links and the files they name exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import laggard

ROOT = Path(__file__).parents[2]
FOLDERS = ("kvstore", "telemetry", "collectors", "detectors", "resilience", "benchmarks", "examples", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_ci_runs_the_first_two_commands_of_the_readme() -> None:
    indented = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    ")]
    script = (ROOT / ".ci" / "run").read_text()
    (reading,) = re.findall(r"^mapfile -t commands < <\((.*)\)$", script, re.MULTILINE)
    found = subprocess.run(["bash", "-c", reading], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == indented[:2]
    assert re.findall(r'^as_user "\$\{commands\[(\d)\]\}"$', script, re.MULTILINE) == ["0", "1"]


def test_the_first_commands_of_the_readme_are_not_silent() -> None:
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3")]
    assert [command for command in commands if "-q" in command.split()] == []


def test_the_first_command_of_the_readme_is_the_main_job() -> None:
    command = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3"))
    for part in ("--local-nodes=3", "--nodes=2", "--resilient", "--exhaust-resources", "examples/slow_gpu.py --plot"):
        assert part in command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_exist(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text())
    missing = [target for target in targets if "://" not in target and not _leads_somewhere(document, target)]
    assert missing == []


def test_linked_sections_exist() -> None:
    wrong = []
    for document in DOCUMENTS:
        for target, section in re.findall(r"\]\(([^)#]*)#([^)]+)\)", document.read_text()):
            page = (document.parent / target).resolve() if target else document
            if "://" not in target and section not in _sections(page):
                wrong.append(f"{document.name}: {target}#{section}")
    assert wrong == []


def _sections(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w/.*]*)`", document.read_text())
    assert [name for name in named if not _is_file_of_ours(name)] == []


def _is_file_of_ours(name: str) -> bool:
    """Whether a path, which may have a star, is in the repository or in the installed package."""
    return any(any(folder.glob(name.rstrip("/"))) for folder in (ROOT, Path(laggard.__path__[0])))


def _leads_somewhere(document: Path, target: str) -> bool:
    path = (document.parent / target).resolve()
    if path.exists():
        return True
    installed = Path(laggard.__path__[0], path.relative_to(ROOT.resolve()))  # beside a wheel, our packages lie there
    return installed.exists()
