"""The documents' site is built without a warning, and has every page in its navigation."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from docs.build_site import build

ROOT = Path(__file__).parents[2]
NAVIGATION = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]["nav"]


def pages_in(navigation: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of a navigation and of the sections in it."""
    for entry in navigation:
        for target in entry.values():
            yield from pages_in(target) if isinstance(target, list) else [target]


def test_each_document_but_single_decisions_is_in_the_navigation_once() -> None:
    documents = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")}
    decisions = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/decisions/0*.md")}
    listed = [page for page in pages_in(NAVIGATION) if page.startswith("docs/")]
    assert sorted(listed) == sorted(documents - decisions - {"docs/README.md"})


@pytest.mark.skipif(find_spec("zensical") is None, reason="needs the extra `site`")
def test_the_site_is_built_without_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = build(tmp_path)

    assert code == 0, capfd.readouterr().out
    text = (tmp_path / "site" / "docs" / "detection.html").read_text()
    assert 'data-md-color-scheme="slate"' in text
    assert 'href="guides/programs.html#slow-ranks-by-the-programs-own-timings"' in text
    assert "excursion" in (tmp_path / "site" / "search.json").read_text()
