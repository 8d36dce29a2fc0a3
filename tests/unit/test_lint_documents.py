"""The linter of what no other one looks at: what it finds in a source, and that a finding fails it."""

from __future__ import annotations

import ast

import pytest

from tests.lint_documents import is_patch, main, open_interpreters, private_ray_in


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ray\nfrom ray.util.queue import Queue\nfrom ray.exceptions import RpcError", []),
        ("from ray._raylet import GcsClient", ["ray._raylet"]),
        ("from ray import _private", ["ray._private"]),
        ("import ray\nray._private.worker", ["ray._private"]),
        ("from ray.core.generated import gcs_pb2", ["ray.core.generated"]),
        ("PROGRAM = 'from ray._private.state import x'", ["ray._private.state"]),
        ("import_module('ray._raylet')", ["ray._raylet"]),
    ],
)
def test_what_is_private_to_ray_is_seen(source: str, expected: list[str]) -> None:
    assert private_ray_in(ast.parse(source)) == expected


@pytest.mark.parametrize(
    ("command", "is_open"),
    [
        ("[sys.executable, '-P', '-m', 'laggard.x']", False),
        ("[sys.executable, '-m', 'laggard.x']", True),
        ("(sys.executable, script)", True),
        ("[sys.executable, '-m', name, *arguments]", False),
        ("[sys.executable]", False),
    ],
)
def test_an_interpreter_that_may_import_from_the_users_folder_is_found(command: str, is_open: bool) -> None:
    assert bool(list(open_interpreters("a.py", ast.parse(command)))) == is_open


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("monkeypatch.setattr(module, 'name', 1)", True),
        ("mock.patch('a.b', 1)", True),
        ("patch.object(module, 'name', 1)", True),
        ("mock.patch.dict(sys.modules)", True),
        ("monkeypatch.setenv('NAME', '1')", False),
        ("setattr(module, 'name', 1)", False),
    ],
)
def test_what_replaces_something_in_a_module_is_a_patch(call: str, expected: bool) -> None:
    (statement,) = ast.parse(call).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert is_patch(statement.value.func) == expected


def test_each_finding_has_a_line_and_fails_the_linter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(lambda: iter(["one", "two"])) == 1
    assert capsys.readouterr().out == "one\ntwo\n"
    assert main(lambda: iter([])) == 0
