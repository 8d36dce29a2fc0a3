"""The options of ``laggard run``, as the command line takes them.

:class:`laggard.resilience.decision.options.JobOptions` says what they mean and checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from laggard.kvstore.server.process import Fsync
from laggard.resilience.decision.events import OnFailure
from laggard.resilience.decision.options import MANAGERS, UsageError, Watched

__all__ = ["run_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _refuse(_context: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        instead = "name a --state-dir on a shared file system, and the same command resumes from it on any node"
        raise UsageError(option.opts[0], "is not supported", instead)


_NODES = (
    click.option(
        "--nodes",
        "-N",
        type=int,
        metavar="N",
        help="Nodes in use; the rest are the reserve.  [default: all, less --idle]",
    ),
    click.option("--idle", "-i", type=int, metavar="N", help="Nodes kept in reserve, to replace bad ones."),
)
_RELAUNCHES = (
    click.option("--resilient", "-r", is_flag=True, help="Relaunch without a node that is slow or lost."),
    click.option(
        "--exhaust-resources",
        "-e",
        is_flag=True,
        help="With --resilient: continue on fewer than --nodes nodes, down to the primary alone.",
    ),
    click.option(
        "--quarantine",
        "quarantine_s",
        type=click.FloatRange(min=1),
        default=86400,
        show_default=True,
        metavar="SECONDS",
        help="How long a bad node stays excluded, and each further time twice as long, up to 7 times; "
        "with --state-dir, from later jobs there too.",
    ),
    click.option(
        "--max-restarts", type=click.IntRange(min=0), metavar="N", help="Limit on relaunches in total.  [default: none]"
    ),
    click.option(
        "--max-restarts-per-hour",
        type=click.IntRange(min=0),
        default=60,
        show_default=True,
        metavar="N",
        help="Limit on relaunches in any hour.",
    ),
    click.option(
        "--on-failure",
        type=click.Choice(get_args(OnFailure)),
        default="relaunch",
        show_default=True,
        help="With --resilient, what to do when the program fails. An error in the program itself ends the job if it "
        "repeats without progress.",
    ),
    click.option(
        "--backoff",
        "backoff_s",
        type=click.FloatRange(min=0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Wait before the second relaunch in a row after failures without progress; doubled each time, to 5 min.",
    ),
    click.option(
        "--wait-for-nodes",
        "wait_for_nodes_s",
        type=click.FloatRange(min=0),
        default=300,
        show_default=True,
        metavar="SECONDS",
        help="With --resilient: how long to wait for lost nodes to return before the job ends for want of nodes.",
    ),
    click.option(
        "--grow-back",
        is_flag=True,
        help="With --exhaust-resources: when nodes are back, relaunch a job that went on with fewer, once that pays; "
        "otherwise its next relaunch uses them.",
    ),
    click.option(
        "--heartbeat-timeout",
        "heartbeat_timeout_s",
        type=click.FloatRange(min=2, max=3600),
        metavar="SECONDS",
        help="How long a node may be silent before it is lost: more than the network's longest pause.  "
        "[default: 3.5; 15 on an existing Ray cluster]",
    ),
    click.option(
        "--hang-timeout",
        metavar="SECONDS|auto",
        help="Relaunch if the program shows no sign of life for this long (a commit, a step, processor time, output), "
        "and name the rank that the others wait for; auto: ten times the longest silence so far, within limits.  "
        "[default: off]",
    ),
)
_TELEMETRY = (
    click.option(
        "--telemetry-level",
        "-T",
        type=click.IntRange(0, 4),
        default=0,
        show_default=True,
        metavar="0..4",
        help="0 off, 1 the program's metrics, 2 + nodes, 3 + GPUs, 4 + the telemetry's own.",
    ),
    click.option(
        "--telemetry-config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        envvar="LAGGARD_TELEMETRY_CONFIG",
        metavar="FILE",
        help="YAML file with telemetry settings.  [also: LAGGARD_TELEMETRY_CONFIG]",
    ),
)
_ALLOCATION = (
    click.option(
        "--wlm",
        type=click.Choice(MANAGERS),
        help="Workload manager that provides the nodes.  [default: ssh if hosts are given, slurm, pbs or lsf "
        "inside such a job, ray if RAY_ADDRESS is set, else local]",
    ),
    click.option(
        "--hostlist",
        metavar="A,B",
        help="Hosts to reach by ssh, also as user@host:port or node[01-16]; the first is this machine.",
    ),
    click.option(
        "--hostfile",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with such hosts, also as for MPI: host slots=8.",
    ),
    click.option("--local-nodes", type=int, metavar="N", help="Virtual nodes on this machine.  [default: 1]"),
    click.option(
        "--virtual-gpus",
        type=click.IntRange(0, 64),
        default=0,
        envvar="LAGGARD_VIRTUAL_GPUS",
        metavar="K",
        help="Virtual devices per node, for machines without GPUs.  "
        "[default: use the GPUs; also: LAGGARD_VIRTUAL_GPUS]",
    ),
)
_PROGRAM = (
    click.option(
        "-m",
        "--module",
        is_flag=True,
        help="PROGRAM is the name of a module, to be run as 'python -m' does.",
    ),
    click.option(
        "--per-node",
        is_flag=True,
        help="Run a copy of PROGRAM on every node, without Ray, with NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT "
        "set, and for other launchers LAGGARD_HOSTFILE and LAGGARD_HOSTLIST.",
    ),
    click.option(
        "--per-device",
        is_flag=True,
        help="Run a copy of PROGRAM for every device of every node, without Ray, with the variables that torchrun "
        "sets: RANK, LOCAL_RANK, WORLD_SIZE and the rest.",
    ),
    click.option(
        "--preload",
        metavar="A,B|auto|none",
        help="With --per-node or --per-device: modules that a process on each node loads ahead, to fork a relaunch of "
        "a Python program from it; auto: the libraries that the last launch has loaded.  [default: auto]",
    ),
)
_DETECTION = (
    click.option(
        "--detect",
        type=click.Choice(get_args(Watched)),
        help="slow-gpu: watch for slow GPUs, without changes to the program, and compare its ranks by its own timings "
        "(laggard.section); sections: only these; slow-link: time bursts between nodes, to find slow NICs and cables. "
        "With --resilient, relaunch without their nodes.",
    ),
    click.option(
        "--detect-interval",
        "detect_interval_s",
        type=click.FloatRange(min=0.1),
        default=3,
        show_default=True,
        metavar="SECONDS",
        help="With --detect: time between rounds of probes, and of the program's own timings.",
    ),
    click.option(
        "--groups",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="With --detect: YAML file that says which ranks or devices have equal work, 'rank 0-7: stage 0' or "
        "'node2 gpu 1: big'; only those with the same label are compared. For slow-link: the switch of each node, as "
        "'node2: leaf1'.",
    ),
    click.option(
        "--link-interface",
        metavar="A,B",
        help="With --detect=slow-link: probe the links of the first network interface of each node whose name begins "
        "so, as NCCL_SOCKET_IFNAME; =A: of exactly this name; ^A: of another.  [default: that of the node's address]",
    ),
    click.option(
        "--probes-in-turn",
        metavar="A,B",
        help="With --detect: also run these probes, one per round, in turn; all: every probe. They only report.",
    ),
    click.option(
        "--inline-probes",
        is_flag=True,
        help="With --detect: the program runs the probes itself, when its devices are free (laggard.InlineProbe).",
    ),
    click.option(
        "--restart-cost",
        "restart_cost_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="With --detect: relaunch without a slow device once it has cost the job this much; 0: at once.  "
        "[default: as measured, from a launch's start to its first progress and since the last commit]",
    ),
    click.option(
        "--expected-duration",
        "expected_duration_s",
        type=click.FloatRange(min=1),
        metavar="SECONDS",
        help="How long the job will run: no relaunch for a slow device that can no longer earn its cost.  "
        "[default: up to Slurm's time limit, or not known]",
    ),
)
_STATE = (
    click.option(
        "--grace",
        "grace_s",
        type=click.FloatRange(min=0, max=3600),
        default=10,
        show_default=True,
        metavar="SECONDS",
        help="How long the program may take to save its state after SIGTERM.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep the program's state here; the same command resumes from it later.  [default: a temporary folder]",
    ),
    click.option(
        "--state-copy",
        is_flag=True,
        hidden=True,
        expose_value=False,
        callback=_refuse,
        help="Say how State outlives the primary.",
    ),
    click.option(
        "--checkpoint-memory",
        metavar="SIZE",
        help="How much of each node's memory checkpoints may use, as 200G.  [default: most of /dev/shm]",
    ),
    click.option(
        "--checkpoint-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Also keep a copy of each checkpoint in this directory, which all nodes share.  [default: in the memory "
        "of two nodes only]",
    ),
    click.option(
        "--state-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Port of the state server.  [default: a free one]",
    ),
    click.option(
        "--state-fsync",
        type=click.Choice(get_args(Fsync)),
        default="always",
        show_default=True,
        help="When a commit to State is on disk: before it returns (always), within two seconds (everysec), or "
        "whenever the operating system writes it (no).",
    ),
)
_RAY = (
    click.option(
        "--ray-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Port of the Ray head node.  [default: a free one]",
    ),
)
_REPORT = (
    click.option(
        "--verbose",
        "-v",
        is_flag=True,
        help="Log what laggard does, here and in its processes' own logs.  [also: LAGGARD_LOG=debug]",
    ),
    click.option(
        "--report/--no-report",
        "keeps_report",
        default=True,
        envvar="LAGGARD_REPORT",
        help="Keep a record of the job, with its logs if it fails, and make a report of it at the end.  "
        "[default: report; also: LAGGARD_REPORT=0]",
    ),
    click.option(
        "--report-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where to put the report's folder.  [default: reports in --state-dir, else ~/.local/state/laggard, "
        "which keeps the last 20 jobs]",
    ),
)


def run_options(command: _Command) -> _Command:
    """Give a command all options of ``laggard run``, in the order of its help."""
    for option in reversed(
        (*_NODES, *_RELAUNCHES, *_TELEMETRY, *_ALLOCATION, *_PROGRAM, *_DETECTION, *_STATE, *_RAY, *_REPORT)
    ):
        command = option(command)
    return command
