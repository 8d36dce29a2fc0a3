"""The ``laggard`` command."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem
from redis import RedisError

from kvstore.endpoint import is_loopback
from kvstore.errors import KVStoreError, PortTakenError, StateDirectoryError
from kvstore.server import Fsync
from resilience.account import Account
from resilience.allocation import Allocation, AllocationError, Elsewhere, find_allocation
from resilience.allocation.ray import RayAllocation
from resilience.attached.cluster import AttachedCluster
from resilience.cluster import Cluster, ClusterError
from resilience.controller import Controller, JobPlan, MakeCluster, StopRequested, stop_on_signals
from resilience.detection import Detection
from resilience.doctor import doctor
from resilience.folders import Folders, job_folders
from resilience.keeper import StateKeeper
from resilience.observation import Observation
from resilience.options import MANAGERS, JobOptions, UsageError
from resilience.ports import free_port, port_is_taken
from resilience.program import ProgramError, command_of
from resilience.ray_cluster import RayCluster
from resilience.record.recording import JobCard, recorded
from resilience.relay import run_on_primary
from resilience.report.command import report
from resilience.viewing import grafana, replay
from resilience.views.commands import status, top
from telemetry.settings import SettingsError

__all__ = ["main"]

EXIT_USAGE = 2
EXIT_FAILURE = 1
LOOPBACK = "127.0.0.1"
NOT_ENCRYPTED = (
    "State goes over the network unencrypted, its password too: set LAGGARD_STATE_SERVER to a redis-server "
    "or valkey-server that has TLS"
)


class _ProgramGroup(click.Group):
    """Takes ``laggard PROGRAM ...`` for ``laggard run PROGRAM ...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help", "-h", "--version"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete sub-commands; and what 'laggard run' would complete, for the short form."""
        short = self.commands["run"].shell_complete(click.Context(self.commands["run"], ctx), incomplete)
        return [*super().shell_complete(ctx, incomplete), *short]


@click.group(cls=_ProgramGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("laggard"), message="laggard %(version)s")
def cli() -> None:
    """Find the slow GPU in your job and relaunch without its node.

    'laggard [OPTIONS] PROGRAM [ARGS]...' is short for 'laggard run ...'; 'laggard run --help' lists the options.
    """


@cli.command(short_help="Run PROGRAM on the nodes.", context_settings={"allow_interspersed_args": False})
@click.option(
    "--nodes", "-N", type=int, metavar="N", help="Nodes in use; the rest is the reserve.  [default: all, less --idle]"
)
@click.option("--idle", "-i", type=int, metavar="N", help="Nodes kept in reserve, to be swapped in.")
@click.option("--resilient", "-r", is_flag=True, help="Relaunch without a node that is slow or lost.")
@click.option(
    "--exhaust-resources",
    "-e",
    is_flag=True,
    help="With --resilient: go on with fewer than --nodes nodes, down to the primary alone.",
)
@click.option(
    "--quarantine",
    "quarantine_s",
    type=click.FloatRange(min=1),
    default=86400,
    show_default=True,
    metavar="SECONDS",
    help="How long a node stays excluded; with --state-dir the next jobs there remember it.",
)
@click.option("--max-restarts", type=click.IntRange(min=0), metavar="N", help="Relaunches in all.  [default: no limit]")
@click.option(
    "--max-restarts-per-hour",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    metavar="N",
    help="Relaunches within any hour.",
)
@click.option(
    "--hang-timeout",
    metavar="SECONDS|auto",
    help="Relaunch when no step is told (Job.progress) and nothing is committed to State for so long; "
    "auto: ten times the longest step so far, at least a minute.  [default: off]",
)
@click.option(
    "--telemetry-level",
    "-T",
    type=click.IntRange(0, 4),
    default=0,
    show_default=True,
    metavar="0..4",
    help="0 off, 1 the program's metrics, 2 + nodes, 3 + GPUs, 4 + the telemetry's own.",
)
@click.option(
    "--telemetry-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="LAGGARD_TELEMETRY_CONFIG",
    metavar="FILE",
    help="YAML file with the telemetry's settings.  [also: LAGGARD_TELEMETRY_CONFIG]",
)
@click.option(
    "--wlm",
    type=click.Choice(MANAGERS),
    help="Who manages the nodes.  [default: ssh with a list of hosts, slurm inside a job of Slurm's, "
    "ray where RAY_ADDRESS is set, else local]",
)
@click.option("--hostlist", metavar="A,B", help="Hosts to reach by ssh; the first one is this machine.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="File with such hosts, one a line.")
@click.option("--local-nodes", type=int, metavar="N", help="Virtual nodes on this machine.  [default: 1]")
@click.option(
    "--virtual-gpus",
    type=click.IntRange(0, 64),
    default=0,
    envvar="LAGGARD_VIRTUAL_GPUS",
    metavar="K",
    help="Virtual devices per node, for machines without GPUs.  [default: their GPUs; also: LAGGARD_VIRTUAL_GPUS]",
)
@click.option(
    "--per-node",
    is_flag=True,
    help="Run a copy of PROGRAM on every node, without Ray, with NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT set.",
)
@click.option(
    "--detect",
    type=click.Choice(["slow-gpu"]),
    help="Watch for slow GPUs without a line changed in the program; with --resilient, relaunch without their nodes.",
)
@click.option(
    "--detect-interval",
    "detect_interval_s",
    type=click.FloatRange(min=0.1),
    default=3,
    show_default=True,
    metavar="SECONDS",
    help="With --detect: from one round of test kernels to the next.",
)
@click.option(
    "--probes-in-turn",
    metavar="A,B",
    help="With --detect: other probes, one with each round, in turn; all: every one there is. They report, no more.",
)
@click.option(
    "--in-gaps",
    is_flag=True,
    help="With --detect: the program runs the test kernels itself, where its devices are free (collectors.Gaps).",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0, max=3600),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How long the program may take to save its state after SIGTERM.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the program's state here: the same command goes on from it later.  [default: a temporary folder]",
)
@click.option(
    "--state-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of the state server.  [default: a free one]",
)
@click.option(
    "--state-fsync",
    type=click.Choice(get_args(Fsync)),
    default="always",
    show_default=True,
    help="When a commit to State is on disk: before it counts, within two seconds, or when the system sees fit.",
)
@click.option(
    "--ray-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of Ray's head.  [default: a free one]"
)
@click.option(
    "--report/--no-report",
    "keeps_report",
    default=True,
    envvar="LAGGARD_REPORT",
    help="Keep a record of the job and make a report of it at the end.  [default: report; also: LAGGARD_REPORT=0]",
)
@click.option(
    "--report-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the report goes, in a folder named after the job.  "
    "[default: reports in --state-dir, else ~/.local/state/laggard, which holds the last 20 jobs]",
)
@click.argument("program", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_obj
def run(as_typed: Sequence[str], /, program: str, arguments: tuple[str, ...], **given: Any) -> int:
    """Run PROGRAM on the nodes of the allocation; what follows PROGRAM is its own.

    For instance, on one machine: laggard --local-nodes=3 --nodes=2 --resilient train.py --epochs 3

    A file that ends in .py runs with this Python. The exit code is the program's own when it ends by itself; 69 when
    too few nodes are left; 93 when launches make no progress or restarts are used up; 2 for wrong usage.

    State is kept by a server that comes along, or by the valkey-server or redis-server that LAGGARD_STATE_SERVER names.

    A job's private folder is made in /tmp, or where LAGGARD_RUNTIME_ROOT says: a short path, since sockets lie there.
    """
    options = JobOptions(**given)
    hang_timeout, probe_names = options.hang_timeout_s(), options.probe_names()
    command = command_of(program, arguments)
    allocation = find_allocation(options)
    if isinstance(allocation, Elsewhere):
        return run_on_primary(allocation.primary, as_typed)
    settings = options.settings(len(allocation.nodes))
    ray_port = options.ray_port or free_port(allocation.nodes[0].address)
    if port_is_taken(ray_port):
        raise UsageError(f"port {ray_port} for Ray's head is taken: name another with --ray-port, or leave it out")
    cluster = _cluster_for(allocation, ray_port, per_node=options.per_node)
    interval_s = options.detect_interval_s if options.detect else None
    detection = Detection(interval_s, probe_names, options.in_gaps)
    observation = Observation.planned(options.telemetry_level, options.telemetry_config)
    stop_on_signals()
    allocation.muster()
    detection.check(allocation.nodes)
    with job_folders(options.state_dir) as folders:
        plan = JobPlan(
            command,
            settings,
            options.grace_s,
            observation,
            cluster,
            folders.runtime,
            hang_timeout,
            detection,
            options.per_node,
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
        keeper = StateKeeper(folders.state, job=job, host=host, port=options.state_port, fsync=options.state_fsync)
    except PortTakenError as taken:
        raise UsageError(
            f"port {taken.port} for the state server is taken: name another with --state-port, or leave it out"
        ) from taken
    observation = plan.observation
    card = JobCard(job, folders.id, plan.command, allocation.nodes, observation.level, observation.port)
    controller: Controller | None = None
    exit_code: int | None = None
    try:
        with keeper, recorded(card, keeper.endpoint, account, options.reports(), kept=options.keeps_report):
            account.tell("state", f"server at {keeper.endpoint.address}, its files in {folders.state}")
            if keeper.endpoint.exposed:
                account.tell("warning", NOT_ENCRYPTED, "bold yellow")
            if observation.level:
                account.tell("telemetry", observation.where)
            controller = Controller(plan, allocation, keeper, account)
            exit_code = controller.run()
        return exit_code
    finally:  # also where the state server was lost for good: its log is there
        folders.keep_state = exit_code != 0 and controller is not None and controller.leaves_something
        if folders.keep_state:
            account.tell("state", f"kept: add --state-dir {folders.state} to go on from it")


for command in (status, top, report, doctor, replay, grafana):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; expected failures are one line, a bug keeps its traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return int(cli.main(args=given, obj=given, prog_name="laggard", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(error.format_message() + "\n")
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "laggard"
        return _fail(f"{error.format_message()} ('{command} --help' lists the options)", EXIT_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_FAILURE)
    except ProgramError as error:
        return _fail(f"{error}{_command_meant(given)}", EXIT_USAGE)
    except (UsageError, SettingsError, StateDirectoryError) as error:
        return _fail(str(error), EXIT_USAGE)
    except click.Abort:  # Ctrl-C, outside of a job
        return 128 + signal.SIGINT
    except StopRequested as stop:
        return 128 + stop.signum
    except (AllocationError, ClusterError, KVStoreError, RedisError) as error:
        return _fail(str(error), EXIT_FAILURE)


def _command_meant(given: Sequence[str]) -> str:
    """Return a hint for a sub-command that was mistyped, and so taken for a program."""
    close = get_close_matches(given[0], cli.commands, 1)
    return f"; did you mean 'laggard {close[0]}'?" if close else ""


def _fail(message: str, exit_code: int) -> int:
    sys.stderr.write(f"laggard: {message}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
