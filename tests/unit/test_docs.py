"""The documents keep their word: commands are those that CI runs, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_ci_runs_the_second_command_of_the_readme() -> None:
    commands = [
        line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3")
    ]
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_first_command_of_the_readme_is_the_main_job() -> None:
    command = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3"))
    for part in ("--local-nodes=3", "--nodes=2", "--resilient", "--exhaust-resources", "examples/slow_gpu.py --plot"):
        assert part in command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text())
    missing = [target for target in targets if "://" not in target and not _leads_somewhere(document, target)]
    assert missing == []


def _leads_somewhere(document: Path, target: str) -> bool:
    path = (document.parent / target).resolve()
    if path.exists():
        return True
    package, *rest = path.relative_to(ROOT.resolve()).parts  # installed, it lies somewhere else
    spec = importlib.util.find_spec(package)
    return spec is not None and Path(spec.submodule_search_locations[0], *rest).exists()  # type: ignore[index]
