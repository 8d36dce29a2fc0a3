"""The tool that changes the source: what it changes, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import SOURCES, edits, equivalents, file_of, files_testing, mutants_of, pure_modules, sample


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b <= c", {"a <= b <= c", "a < b < c"}),
        ("a is not b", {"a is b"}),
        ("a not in b", {"a in b"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("not (a)", {" (a)"}),
        ("-a - b", {"a - b", "-a + b"}),
        ("a //= b", {"a *= b"}),
        ("f(a, True)", {"f(a, False)"}),
        ("[0, 1.5, 0.0]", {"[1, 1.5, 0.0]", "[0, 3.0, 0.0]", "[0, 1.5, 1.0]"}),
        ("(a  # and so on\n or b)", {"(a  # and so on\n and b)"}),
        ("'ü' + a", {"'ü' - a"}),
        ("@f(1)\ndef g(a: 'x[1]') -> 2: pass", set()),
        ("f'{a + 1}'", set()),
        ("f(a, strict=True)", set()),
    ],
)
def test_one_thing_is_changed_at_a_time(source: str, expected: set[str]) -> None:
    text = source.encode()

    assert {(text[:begin] + new.encode() + text[end:]).decode() for begin, end, new in edits(text)} == expected


def test_every_mutant_is_a_program_and_a_seed_gives_the_same_ones() -> None:
    modules = pure_modules()[:20]
    drawn = sample(modules, 20, 5)

    assert drawn == sample(modules, 20, 5) != sample(modules, 20, 6)
    for mutant in drawn:
        assert mutant in mutants_of(mutant.file)
        ast.parse(mutant.applied_to((SOURCES / mutant.file).read_bytes()))


def test_modules_with_input_or_output_are_left_out() -> None:
    modules = pure_modules()

    assert "resilience/allocation/slurm_text.py" in modules
    assert "telemetry/query/engine.py" in modules
    assert "kvstore/server/process.py" not in modules  # it starts a process
    assert "resilience/controller/returning.py" not in modules  # it waits
    assert "telemetry/store/tiers.py" in modules


def test_the_tests_of_a_module_are_those_that_reach_it_the_nearest_first() -> None:
    near, next_to_it, far = files_testing("telemetry/query/engine.py")

    assert "tests/unit/test_query_engine.py" in near
    assert len({*near, *next_to_it, *far}) == len(near + next_to_it + far)
    assert far


@pytest.mark.parametrize("name", ["laggard.SlowGPUDetector", "laggard.detectors.SlowGPUDetector"])
def test_a_test_reaches_what_a_package_loads_when_it_is_first_used(name: str) -> None:
    assert file_of(name) == "detectors/slow_gpu.py"


def test_every_equivalent_mutant_has_a_reason() -> None:
    assert all(len(reason) > 20 for reason in equivalents().values())
