"""``laggard run``: runs a program on the nodes of an allocation."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from laggard.collectors.errors import RayMissingError
from laggard.collectors.ray_actors import require_ray
from laggard.detectors.errors import GroupsError
from laggard.detectors.judging.groups import read_groups
from laggard.kvstore.client.connection import Endpoint
from laggard.logs import LOG_VARIABLE, configure_logging
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.agent_listener import allow_descriptors
from laggard.resilience.allocation.slurm import SRUN_ARGS, slurm_leaves, slurm_time_left_s, srun_args
from laggard.resilience.command.find_allocation import find_allocation
from laggard.resilience.command.member import Member
from laggard.resilience.command.option import flag_of
from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.relay import run_on_primary
from laggard.resilience.command.report import make_report
from laggard.resilience.command.run_options import passed_on, run_options
from laggard.resilience.command.state import (
    SiteAccess,
    node_history,
    site_access,
    site_endpoint,
    state_keeper,
    tell_where,
)
from laggard.resilience.controller.controller import Controller
from laggard.resilience.controller.detection import NO_DETECTION, Detection
from laggard.resilience.controller.launches import JobPlan, MakeCluster
from laggard.resilience.controller.shard_servers import CheckpointOptions
from laggard.resilience.controller.stop_signals import StopSignals
from laggard.resilience.controller.telemetry_processes import JobTelemetry
from laggard.resilience.decision.hang import HangTimeout
from laggard.resilience.errors import UsageError
from laggard.resilience.folders import Folders, job_folders
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.program import command_of, command_of_module
from laggard.resilience.ray.allocation import RayAllocation
from laggard.resilience.ray.attached_cluster import AttachedCluster
from laggard.resilience.ray.cluster import RayCluster
from laggard.resilience.record.account import Account
from laggard.resilience.record.job_logs import move_logs
from laggard.resilience.record.job_record import recorded
from laggard.resilience.record.notifier import notified
from laggard.resilience.wire.detection import Watch
from laggard.system.ports import FIRST_PORT_OF_USERS, PortRange, free_port, port_is_taken, port_needs_root
from laggard.system.ports import VARIABLE as PORT_RANGE
from laggard.telemetry.course import JobBegan


@click.command(short_help="Run a program.", context_settings={"allow_interspersed_args": False})
@run_options
@click.argument("program", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_obj
def run(as_typed: Sequence[str], /, program: str, arguments: tuple[str, ...], **given: Any) -> int:
    """Run PROGRAM on the nodes of the allocation. Everything after PROGRAM is passed to it."""
    # For example, on one machine: laggard --local-nodes=3 --nodes=2 --resilient train.py --epochs 3
    # A file whose name ends in .py runs with this Python. The exit code is the program's own if it ends on its own; 69
    # if too few nodes are left; 93 if launches make no progress or no restarts are left; 2 for wrong usage.
    # State is kept by the bundled server, or by the valkey-server or redis-server that LAGGARD_STATE_SERVER names.
    # The job's private folder is created in /tmp or in LAGGARD_RUNTIME_ROOT, whose path must be short: sockets go
    # there.
    if given["verbose"]:
        os.environ[LOG_VARIABLE] = "debug"  # inherited by every process that we start
        configure_logging()
    options = JobOptions(**given)
    checked = _checked(options)
    command = (command_of_module if options.module else command_of)(program, arguments)
    job = options.job_name or _job_name(program if options.module else Path(program).stem)
    allocation = find_allocation(options)
    if not isinstance(allocation, Allocation | Member):
        return run_on_primary(allocation.primary, as_typed)
    access = site_access(options, os.environ)
    if isinstance(allocation, Member):
        return allocation.serve()
    options = _without_ray(options, len(allocation.nodes))
    for passed in passed_on(as_typed, arguments):
        _tell(f"{passed} goes to {program}: write it before {program} if it is for laggard, else '-- {program}'")
    return _run_on(allocation, options, checked, access, command, job)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What options ask for, of those that are checked before a node is looked for."""

    hang_timeout: HangTimeout | None
    groups: Path | None
    detection: Detection
    checkpoints: CheckpointOptions


def _checked(options: JobOptions) -> _Checked:
    if options.srun_args:
        srun_args(options.srun_args)
        os.environ[SRUN_ARGS] = options.srun_args
    if options.port_range:
        os.environ[PORT_RANGE] = str(PortRange.of_text(options.port_range))  # inherited, too
    check_ports(options.state_port, options.ray_port)
    check_folders(
        report_dir=options.report_dir if options.report else None,
        checkpoint_dir=options.checkpoint_dir,
        node_history=options.history_folder(),
    )
    options.check_notify()
    hang_timeout, groups = options.hang_timeout_s(), group_file(options)
    checkpoints = CheckpointOptions(options.checkpoint_bytes(), options.checkpoint_dir)
    return _Checked(hang_timeout, groups, _detection(options, groups), checkpoints)


def _run_on(
    allocation: Allocation, options: JobOptions, checked: _Checked, access: SiteAccess, command: Sequence[str], job: str
) -> int:
    site = site_endpoint(options, access, job, allocation.nodes[0].address)
    history = node_history(options, access)
    head_only = isinstance(allocation, RayAllocation) and allocation.head_only
    varies, leaves = options.manager(os.environ) in {"slurm", "ray"}, leaves_of_job(checked.groups)
    settings = options.settings(max(1, len(allocation.nodes) - head_only), varies=varies, leaves=leaves)
    ray_port = _ray_port(options, allocation.nodes[0].address)
    cluster = _cluster_for(allocation, ray_port, per_node=options.runs_copies())
    telemetry = JobTelemetry.configured(options.telemetry_level, options.telemetry_config)
    signals = StopSignals()
    signals.listen()
    allow_descriptors(len(allocation.nodes))
    missing = allocation.discover(options.may_miss(len(allocation.nodes)), _tell)
    there = [node for node in allocation.nodes if node.hostname not in missing]
    options.check_devices(there[1 if head_only else 0 :])
    checked.detection.check(there)
    if options.per_device and settings.places_ranks:
        settings = replace(settings, devices={node.hostname: node.devices for node in allocation.nodes})
    with job_folders(options.state_dir) as folders:
        plan = JobPlan(
            command,
            settings,
            options.grace_s,
            telemetry,
            cluster,
            folders.runtime,
            checked.hang_timeout,
            checked.detection,
            per_node=options.runs_copies(),
            per_device=options.per_device,
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            ends_s=options.ends_s(time.time(), slurm_time_left_s()),
            head_only=head_only,
            checkpoints=checked.checkpoints,
            may_be_warm=options.preload == "auto",
            history=history,
            name=f"{job}-{folders.id}",
        )
        return _run_job(plan, allocation, folders, job, options, site, missing, signals)


def _without_ray(options: JobOptions, n_nodes: int) -> JobOptions:
    """Return the options, with which one node runs a program even if Ray is not installed."""
    if options.runs_copies():
        return options
    try:
        require_ray("run the program on each node with --per-node")
    except RayMissingError as missing:
        if n_nodes > 1 or missing.installed is not None:
            raise
        _tell("Ray is not installed, so the program runs as with --per-node")
        return replace(options, per_node=True)
    return options


def _detection(options: JobOptions, groups: Path | None) -> Detection:
    if not options.detect:
        return NO_DETECTION
    file = None if groups is None else str(groups)
    cost_s, interface = options.restart_cost_s, options.probed_interface()
    return Detection(Watch(options.detect_interval_s, options.inline_probes, file, options.detect, cost_s, interface))


def check_ports(state_port: int | None, ray_port: int | None) -> None:
    """Refuse ports that are for root only."""
    for flag, port in (("--state-port", state_port), ("--ray-port", ray_port)):
        if port and port < FIRST_PORT_OF_USERS and port_needs_root(port):
            raise UsageError(f"{flag}={port}", "needs root, as ports below 1024 do", "name another, or leave it out")


def check_folders(**folders: Path | None) -> None:
    """Refuse folders that cannot be written, before a job whose results would be lost."""
    for name, folder in folders.items():
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=folder):
                    continue
            except OSError as error:
                flag = f"{flag_of(name)}={folder}"
                raise UsageError(flag, "cannot be written", f"{error.strerror}; name another folder") from error


def group_file(options: JobOptions) -> Path | None:
    """Return the file with the labels, wherever it is read from, once it has proved valid."""
    if options.groups is None:
        return None
    try:
        read_groups(options.groups)
    except GroupsError as error:
        raise UsageError(f"--groups={options.groups}", "is not valid", error.reason) from error
    return options.groups.absolute()


def leaves_of_job(groups: Path | None) -> dict[str, str]:
    """Return the leaf switch of each node: from the file with the labels, else from Slurm."""
    labels = {} if groups is None else read_groups(groups)
    return {host: str(leaf) for host, leaf in labels.items() if isinstance(host, str)} or slurm_leaves()


def _ray_port(options: JobOptions, address: str) -> int:
    if options.ray_port and port_is_taken(options.ray_port):
        taken = f"port {options.ray_port} for Ray's head is taken"
        raise UsageError(f"{taken}: name another with --ray-port, or leave it out")
    return options.ray_port or free_port(address)


def _cluster_for(allocation: Allocation, ray_port: int, *, per_node: bool) -> MakeCluster:
    if isinstance(allocation, RayAllocation):
        return partial(AttachedCluster, ray=allocation, per_node=per_node)
    return Cluster if per_node else partial(RayCluster, port=ray_port)


def _tell(text: str) -> None:
    sys.stderr.write(f"laggard: {text}\n")
    sys.stderr.flush()


def _job_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.@-]", "_", name)


def _run_job(
    plan: JobPlan,
    allocation: Allocation,
    folders: Folders,
    job: str,
    options: JobOptions,
    site: Endpoint | None,
    missing: Mapping[str, str],
    signals: StopSignals,
) -> int:
    account = Account()
    keeper = state_keeper(options, site, folders.state, job, allocation.nodes[0].address, account)
    telemetry = plan.telemetry
    card = JobBegan(job, folders.id, tuple(plan.command), tuple(allocation.nodes), telemetry.level, telemetry.port)
    controller: Controller | None = None
    exit_code: int | None = None
    try:
        with (
            keeper,
            recorded(
                card, keeper.endpoint, account, options.report_folder(), kept=options.report, make_report=make_report
            ) as record,
            notified(options.notify, job, account),
        ):
            tell_where(keeper, site, folders.state, account)
            if telemetry.level:
                account.tell("telemetry", telemetry.where)
            controller = Controller(plan, allocation, keeper, account, record, missing, signals)
            try:
                exit_code = controller.run()
            finally:
                if record is not None and (logs := move_logs(folders.runtime, record)):
                    account.tell("logs", f"of this job's processes: {logs}")
        return exit_code
    finally:  # even if the state server was lost for good, its log is there
        is_kept = exit_code != 0 and controller is not None and controller.leaves_something
        folders.keep_state = is_kept and site is None
        if controller is not None and options.state_dir is None and site is None and not is_kept:
            controller.remove_checkpoints()
        if is_kept and site is not None:
            account.tell("state", f"kept at {site.address}: the same command goes on from it")
        if folders.keep_state:
            account.tell("state", f"kept: add --state-dir {folders.state} to go on from it")
