"""Helper processes never import from the user's folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import laggard

# Python puts the working directory, or the script's own folder, first on its path unless told not to.
KEEPS_THE_FOLDER_OUT = {"-P", "-I"}
# The user's own program, a file or a module, which may import what lies beside it.
ALLOWED = {"sys.executable, program, *arguments", "sys.executable, '-m', name, *arguments"}


def interpreter_commands() -> Iterator[tuple[str, ast.List | ast.Tuple]]:
    """Yield each list or tuple in laggard's source in which an interpreter is followed by its arguments."""
    for package in filter(Path.is_dir, Path(laggard.__file__).parent.iterdir()):
        for path in package.resolve().rglob("*.py"):  # resolved: in the repository it is a link, which rglob passes by
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.List | ast.Tuple):
                    words = [ast.unparse(word) for word in node.elts]
                    if "sys.executable" in words[:-1]:
                        yield f"{package.name}/{path.relative_to(package.resolve())}:{node.lineno}", node


COMMANDS = dict(interpreter_commands())


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("place", COMMANDS)
def test_an_interpreter_keeps_the_users_folder_off_its_path(place: str) -> None:
    words = [ast.unparse(word) for word in COMMANDS[place].elts]
    if ", ".join(words) not in ALLOWED:
        options = [words[at + 1].strip("'") for at, word in enumerate(words[:-1]) if word == "sys.executable"]
        assert set(options) <= KEEPS_THE_FOLDER_OUT, words
