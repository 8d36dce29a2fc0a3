"""Builds the documents' site: pages, search and the API reference.  ``poe site`` runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "build" / "reference"
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def build(folder: Path) -> int:
    """Build the site of the working tree into a folder's ``site``; a warning fails it."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    _collect(pages)
    if REFERENCE.is_dir():
        shutil.copytree(REFERENCE, pages / "reference")
    shutil.copyfile(ROOT / "docs" / "zensical.toml", folder / "zensical.toml")
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=folder).returncode


def _collect(pages: Path) -> None:
    """Copy the documents, and the files to which they link; they keep their places, so that links hold."""
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"]:
        _copy(document, pages)
        for target in _LINK.findall(document.read_text(encoding="utf-8")):
            linked = (document.parent / target).resolve()
            for file in linked.glob("*.*") if linked.is_dir() else [linked]:
                _copy(file, pages)


def _copy(file: Path, pages: Path) -> None:
    if not file.is_file():
        return  # that a link leads nowhere is found by tests/lint_documents.py
    place = pages / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


if __name__ == "__main__":
    sys.exit(build(ROOT / "build"))
