"""The command line as a whole: its help, and the exit code of each error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from redis import RedisError

from laggard.errors import LaggardError
from laggard.kvstore.errors import PortTakenError, StateDirectoryError
from laggard.resilience.command.cli import COMMANDS, cli, load_command, main
from laggard.resilience.command.past_checks import PastReadingsError
from laggard.resilience.record.journal import JournalError
from tests.waiting import DEADLINE_S

WIDTH = 100


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_fits_on_a_hundred_columns(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = load_command(name)
    assert command.help
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)  # as the help lists them
    for name, (_, short_help) in COMMANDS.items():
        assert load_command(name).get_short_help_str(WIDTH) == short_help


def test_help_loads_no_sub_command_and_no_library_that_one_needs() -> None:
    """It takes a twentieth of the time of loading them."""
    code = "import sys; from laggard.__main__ import main; main(); print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, "--help"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    loaded = set(ended.stdout.split())
    assert "repair-state" in ended.stdout
    assert loaded & {"click", "laggard.resilience.command.cli"} == {"click", "laggard.resilience.command.cli"}
    assert not loaded & {
        "numpy",
        "redis",
        "rich",
        "psutil",
        "asyncio",
        "laggard.kvstore",
        "laggard.resilience.command.run",
    }


class UnthoughtOfError(LaggardError):
    """An error that the command line knows nothing of."""

    reason: str
    template = "{reason}"


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Return a list whose first error the command ``laggard fail`` raises."""
    errors: list[Exception] = []

    def fail() -> None:
        raise errors[0]

    monkeypatch.setitem(cli.commands, "fail", click.Command("fail", callback=fail))
    return errors


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (StateDirectoryError("/state", "Permission denied"), 2),
        (PortTakenError("127.0.0.1", 4242), 1),
        (JournalError(Path("job.jsonl"), "is damaged"), 1),
        (PastReadingsError(Path("devices.json"), "KeyError: 'x'"), 1),
        (UnthoughtOfError("of a kind that nobody has thought of"), 1),
        (RedisError("no answer"), 1),
        (click.ClickException("no"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_expected_error_is_one_line(
    error: Exception, exit_code: int, fail_with: list[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with.append(error)
    assert main(["fail"]) == exit_code
    message = error.message if isinstance(error, click.ClickException) else str(error)
    assert capsys.readouterr() == ("", f"laggard: {message}\n")


def test_a_bug_keeps_its_traceback(fail_with: list[Exception]) -> None:
    fail_with.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["fail"])
