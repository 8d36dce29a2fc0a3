"""The ``laggard`` command: its sub-commands, ``laggard run``, and the exit code of each error."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from redis import RedisError

from laggard.collectors.errors import RayMissingError
from laggard.collectors.ray_actors import require_ray
from laggard.errors import LaggardError
from laggard.kvstore.connection import is_loopback
from laggard.kvstore.errors import PortTakenError, StateDirectoryError
from laggard.logs import LOG_VARIABLE, LogLevelError, configure_logging
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.network import free_port, port_is_taken
from laggard.resilience.allocation.slurm import slurm_time_left_s
from laggard.resilience.command.doctor import doctor
from laggard.resilience.command.explain import explain
from laggard.resilience.command.find_allocation import Elsewhere, find_allocation
from laggard.resilience.command.relay import run_on_primary
from laggard.resilience.command.repair_state import repair_state
from laggard.resilience.command.report import make_report, report
from laggard.resilience.command.run_options import run_options
from laggard.resilience.command.telemetry import grafana, replay
from laggard.resilience.command.unblocked_stderr import unblocked_stderr
from laggard.resilience.command.views import status, top
from laggard.resilience.controller.controller import Controller, StopRequested, stop_on_signals
from laggard.resilience.controller.detection import Detection
from laggard.resilience.controller.launches import JobPlan, MakeCluster
from laggard.resilience.controller.state_server_keeper import StateKeeper
from laggard.resilience.controller.telemetry_processes import JobTelemetry
from laggard.resilience.decision.options import JobOptions, UsageError
from laggard.resilience.folders import Folders, job_folders
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.program import ProgramError, command_of
from laggard.resilience.ray.allocation import RayAllocation
from laggard.resilience.ray.attached_cluster import AttachedCluster
from laggard.resilience.ray.cluster import RayCluster
from laggard.resilience.record.account import Account
from laggard.resilience.record.job_logs import move_logs
from laggard.resilience.record.job_record import JobCard, recorded
from laggard.telemetry.settings import SettingsError

__all__ = ["main"]

EXIT_USAGE = 2
EXIT_FAILURE = 1
USAGE_ERRORS = (RayMissingError, UsageError, ProgramError, SettingsError, StateDirectoryError, LogLevelError)
FAILURES = (LaggardError, RedisError)
LOOPBACK = "127.0.0.1"
NOT_ENCRYPTED = (
    "State and its password cross the network unencrypted: set LAGGARD_STATE_SERVER to a redis-server "
    "or valkey-server with TLS"
)


class _ProgramGroup(click.Group):
    """Treats ``laggard PROGRAM ...`` as ``laggard run PROGRAM ...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help", "-h", "--version"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete sub-commands, and whatever 'laggard run' completes, for the short form."""
        of_run = self.commands["run"].shell_complete(click.Context(self.commands["run"], ctx), incomplete)
        return [*super().shell_complete(ctx, incomplete), *of_run]


@click.group(cls=_ProgramGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("laggard"), message="laggard %(version)s")
def cli() -> None:
    """Find the slow GPU in your job and relaunch without its node.

    'laggard [OPTIONS] PROGRAM [ARGS]...' is short for 'laggard run ...'; see 'laggard run --help'.

    LAGGARD_LOG=debug shows what any of them does.
    """
    configure_logging("warning")


@cli.command(short_help="Run a program.", context_settings={"allow_interspersed_args": False})
@run_options
@click.argument("program", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_obj
def run(as_typed: Sequence[str], /, program: str, arguments: tuple[str, ...], *, verbose: bool, **given: Any) -> int:
    """Run PROGRAM on the nodes of the allocation. Everything after PROGRAM is passed to it.

    For example, on one machine: laggard --local-nodes=3 --nodes=2 --resilient train.py --epochs 3

    A file whose name ends in .py runs with this Python. The exit code is the program's own if it ends on its own; 69
    if too few nodes are left; 93 if launches make no progress or no restarts are left; 2 for wrong usage.

    State is kept by the bundled server, or by the valkey-server or redis-server that LAGGARD_STATE_SERVER names.

    The job's private folder is created in /tmp or in LAGGARD_RUNTIME_ROOT, whose path must be short: sockets go there.
    """
    if verbose:
        os.environ[LOG_VARIABLE] = "debug"  # inherited by every process that we start
        configure_logging()
    options = JobOptions(**given)
    hang_timeout, probe_names, groups = options.hang_timeout_s(), options.probe_names(), options.group_file()
    restart_cost_s = options.restart_cost()
    command = command_of(program, arguments)
    if not options.runs_copies():
        require_ray("run a copy of the program on each node with --per-node")
    allocation = find_allocation(options)
    if isinstance(allocation, Elsewhere):
        return run_on_primary(allocation.primary, as_typed)
    settings = options.settings(len(allocation.nodes))
    if options.ray_port and port_is_taken(options.ray_port):
        taken = f"port {options.ray_port} for Ray's head is taken"
        raise UsageError(f"{taken}: name another with --ray-port, or leave it out")
    ray_port = options.ray_port or free_port(allocation.nodes[0].address)
    cluster = _cluster_for(allocation, ray_port, per_node=options.runs_copies())
    interval_s = options.detect_interval_s if options.detect else None
    sections_only = options.detect == "sections"
    detection = Detection(interval_s, probe_names, options.inline_probes, groups, sections_only, restart_cost_s)
    telemetry = JobTelemetry.configured(options.telemetry_level, options.telemetry_config)
    stop_on_signals()
    allocation.discover()
    options.check_devices(allocation.nodes)
    detection.check(allocation.nodes)
    with job_folders(options.state_dir) as folders:
        plan = JobPlan(
            command,
            settings,
            options.grace_s,
            telemetry,
            cluster,
            folders.runtime,
            hang_timeout,
            detection,
            options.runs_copies(),
            options.per_device,
            options.heartbeat_timeout_s,
            options.ends_s(time.time(), slurm_time_left_s()),
        )
        return _run_job(plan, allocation, folders, _job_name(program), options)


def _cluster_for(allocation: Allocation, ray_port: int, *, per_node: bool) -> MakeCluster:
    if isinstance(allocation, RayAllocation):
        return partial(AttachedCluster, ray=allocation, per_node=per_node)
    return Cluster if per_node else partial(RayCluster, port=ray_port)


def _job_name(program: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.@-]", "_", Path(program).stem)


def _run_job(plan: JobPlan, allocation: Allocation, folders: Folders, job: str, options: JobOptions) -> int:
    account = Account()
    address = allocation.nodes[0].address
    host = LOOPBACK if is_loopback(address) else address
    try:
        keeper = StateKeeper(
            folders.state,
            job=job,
            host=host,
            port=options.state_port,
            fsync=options.state_fsync,
            on_loading=partial(account.tell, "state"),
        )
    except PortTakenError as taken:
        raise UsageError(
            f"port {taken.port} for the state server is taken: name another with --state-port, or leave it out"
        ) from taken
    telemetry = plan.telemetry
    card = JobCard(job, folders.id, plan.command, allocation.nodes, telemetry.level, telemetry.port)
    controller: Controller | None = None
    exit_code: int | None = None
    try:
        with (
            keeper,
            recorded(
                card,
                keeper.endpoint,
                account,
                options.reports(),
                kept=options.keeps_report,
                make_report=make_report,
            ) as record,
        ):
            account.tell("state", f"server at {keeper.endpoint.address}, its files in {folders.state}")
            if keeper.endpoint.exposed:
                account.tell("warning", NOT_ENCRYPTED, "bold yellow")
            if telemetry.level:
                account.tell("telemetry", telemetry.where)
            controller = Controller(plan, allocation, keeper, account, record)
            try:
                exit_code = controller.run()
            finally:
                if record is not None and (logs := move_logs(folders.runtime, record)):
                    account.tell("logs", f"of this job's processes: {logs}")
        return exit_code
    finally:  # even if the state server was lost for good, its log is there
        folders.keep_state = exit_code != 0 and controller is not None and controller.leaves_something
        if folders.keep_state:
            account.tell("state", f"kept: add --state-dir {folders.state} to go on from it")


for command in (status, top, explain, report, doctor, replay, grafana, repair_state):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an expected error is one line, a bug keeps its traceback."""
    with unblocked_stderr():
        return _main(sys.argv[1:] if arguments is None else list(arguments))


def _main(given: Sequence[str]) -> int:
    try:
        return int(cli.main(args=list(given), obj=list(given), prog_name="laggard", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(error.format_message() + "\n")
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "laggard"
        return _fail(f"{error.format_message()} ('{command} --help' lists the options)", EXIT_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_FAILURE)
    except USAGE_ERRORS as error:
        hint = _suggestion(given) if isinstance(error, ProgramError) else ""
        return _fail(f"{error}{hint}", EXIT_USAGE)
    except click.Abort:  # Ctrl-C outside a job
        return 128 + signal.SIGINT
    except StopRequested as stop:
        return 128 + stop.signum
    except FAILURES as error:
        return _fail(str(error), EXIT_FAILURE)


def _suggestion(given: Sequence[str]) -> str:
    """Return a hint if a sub-command was mistyped and therefore taken for a program."""
    close = get_close_matches(given[0], cli.commands, 1)
    return f"; did you mean 'laggard {close[0]}'?" if close else ""


def _fail(message: str, exit_code: int) -> int:
    sys.stderr.write(f"laggard: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
