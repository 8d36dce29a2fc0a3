"""The ``laggard`` command: its sub-commands, and the exit code of each error.

A sub-command's module is loaded when the sub-command is used, so that ``laggard --help`` loads none of them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from laggard.interrupts import ended_by_interrupts
from laggard.logs import configure_logging
from laggard.resilience.command.unblocked_stderr import unblocked_stderr

EXIT_USAGE = 2
EXIT_FAILURE = 1
COMMANDS = {
    "demo": ("demo", "See laggard at work, on this machine, without a GPU."),
    "doctor": ("doctor", "Check the GPUs of this machine, or of many nodes."),
    "explain": ("explain", "Tell a job's story: what it was worth, and where the rest went."),
    "grafana": ("telemetry", "Write the configuration of Grafana and Prometheus."),
    "kubernetes": ("kubernetes", "Write a manifest for a Kubernetes job."),
    "nodes": ("nodes", "Show what the site remembers about its nodes."),
    "repair-state": ("repair_state", "Repair the damaged log of a state directory."),
    "replay": ("telemetry", "Serve telemetry dumps: their page, and Grafana."),
    "report": ("report", "Write the report of a job: an HTML page."),
    "run": ("run", "Run a program."),
    "status": ("views", "Show the status of a running job, once."),
    "top": ("views", "Show the status of a running job, live."),
}
"""The module of each sub-command, and its line in the help."""


def load_command(name: str) -> click.Command:
    """Load a sub-command."""
    module, _ = COMMANDS[name]
    with ended_by_interrupts():
        home = import_module(f"laggard.resilience.command.{module}")
    command: click.Command = getattr(home, name.replace("-", "_"))
    return command


class _ProgramGroup(click.Group):
    """Loads a sub-command's module when it is used, and treats ``laggard PROGRAM`` as ``laggard run PROGRAM``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the sub-commands."""
        del ctx
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a sub-command."""
        return load_command(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["version"]:
            args = ["--version"]
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        if args and args[0] not in {*self.list_commands(ctx), "--help", "-h", "--version"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without loading them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete sub-commands, and whatever 'laggard run' completes, for the short form."""
        run = load_command("run")
        return [*super().shell_complete(ctx, incomplete), *run.shell_complete(click.Context(run, ctx), incomplete)]


@click.group(cls=_ProgramGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="laggard", message="laggard %(version)s")
def cli() -> None:
    """Find the slow GPU in your job and relaunch without its node.

    To see it at work, type 'laggard demo'; for your own program, 'laggard PROGRAM', which is short for 'laggard run
    PROGRAM'.
    """
    # LAGGARD_LOG=debug shows what any of them does.
    configure_logging("warning")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an expected error is one line, a bug keeps its traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with unblocked_stderr():
            return _main(given)
    except (Exception, KeyboardInterrupt) as error:  # a signal, while the last lines are written
        exit_code = _exit_code(error, given)
        if exit_code is None:
            raise
        return exit_code


def _main(given: Sequence[str]) -> int:
    try:
        return int(cli.main(args=list(given), obj=list(given), prog_name="laggard", standalone_mode=False) or 0)
    except Exception as error:
        exit_code = _exit_code(error, given)
        if exit_code is None:
            raise
        return exit_code


def _exit_code(error: BaseException, given: Sequence[str]) -> int | None:
    """Return the exit code of an error after saying what it is; None for a bug."""
    # What can go wrong is not needed if nothing does.
    from laggard.resilience.command import failures
    from laggard.resilience.controller.stopping import StopRequested
    from laggard.resilience.errors import ProgramError

    match error:
        case click.exceptions.NoArgsIsHelpError():
            sys.stderr.write(error.format_message() + "\n")
            return EXIT_USAGE
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "laggard"
            return _fail(f"{error.format_message()} ('{command} --help' lists the options)", EXIT_USAGE)
        case click.ClickException():
            return _fail(error.format_message(), EXIT_FAILURE)
        case click.Abort() | KeyboardInterrupt():  # Ctrl-C outside a job
            return 128 + signal.SIGINT
        case StopRequested():
            return 128 + error.signum
    if isinstance(error, failures.USAGE_ERRORS):
        hint = _suggestion(given) if isinstance(error, ProgramError) else ""
        return _fail(f"{error}{hint}", EXIT_USAGE)
    return _fail(str(error), EXIT_FAILURE) if isinstance(error, failures.FAILURES) else None


def _suggestion(given: Sequence[str]) -> str:
    """Return a hint if a sub-command was mistyped and therefore taken for a program."""
    close = get_close_matches(given[0], COMMANDS, 1)
    return f"; did you mean 'laggard {close[0]}'?" if close else ""


def _fail(message: str, exit_code: int) -> int:
    sys.stderr.write(f"laggard: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
