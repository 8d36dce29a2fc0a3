"""The programs in the guides run as they stand; examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("kvstore", "telemetry", "collectors", "detectors", "resilience")


def programs_in(document: str) -> list[str]:
    """Return a document's Python blocks."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)


def modules() -> list[str]:
    return [
        found.name
        for package in PACKAGES
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if not found.name.endswith("__main__")
    ]


@pytest.mark.parametrize("number", range(len(programs_in("guides/developer.md"))))
def test_the_developers_programs_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = programs_in("guides/developer.md")[number]

    exec(compile(program, f"developer.md, program {number}", "exec"), {"__name__": "guide"})  # noqa: S102

    if "print(verdict.evidence)" in program:
        assert re.search(r"node1 gpu 7: 30 % slower than its 7 peers", capsys.readouterr().out)


def test_the_users_detector_of_the_guide_accuses_the_slow_host() -> None:
    (program,) = (program for program in programs_in("guides/developer.md") if "class TwiceAsSlow" in program)
    namespace: dict[str, object] = {}
    exec(program, namespace)  # noqa: S102
    detector = namespace["TwiceAsSlow"]
    assert isinstance(detector, type)

    data = {("node1", "0"): [1.0, 1.1], ("node2", "0"): [2.5, 2.3]}
    assert detector().analyze_data(data, None) == (True, ["node2"])
    assert detector().analyze_data({("node1", "0"): [1.0], ("node2", "0"): [1.5]}, None) == (False, [])


def test_examples_in_docstrings_give_what_they_say() -> None:
    tried = failed = 0
    for name in modules():
        found = doctest.testmod(importlib.import_module(name))
        tried, failed = tried + found.attempted, failed + found.failed
    assert tried > 0
    assert failed == 0


def test_the_operators_guide_explains_every_word_of_an_account() -> None:
    guide = (ROOT / "docs" / "guides" / "operator.md").read_text()
    source = "".join(
        inspect.getsource(importlib.import_module(name)) for name in modules() if name.startswith("resilience.")
    )

    words = set(re.findall(r'\.tell\(\s*"(\w+)"', source))

    assert len(words) > 10
    assert words - set(re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)) == set()
