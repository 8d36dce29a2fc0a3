"""``laggard doctor``: checks the devices of this machine or of many nodes, once, and reports which are slow."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from laggard.collectors.boards import Boards
from laggard.collectors.device import DeviceId
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.links.peer_check import PeerCheck
from laggard.collectors.supervised_check import NodeCheck, check_here
from laggard.detectors.judging.diagnosis import Condition, Diagnosis, diagnose, remembered
from laggard.detectors.judging.inventory import inventoried, with_faults
from laggard.errors import LaggardError
from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.host_files import named_hosts
from laggard.resilience.allocation.network import is_this_machine
from laggard.resilience.allocation.slurm import Srun, check_runs_once, slurm_node_names
from laggard.resilience.allocation.ssh import Ssh
from laggard.resilience.command.gpu_links import lines_on_gpu_links
from laggard.resilience.command.link_check import LinkCheck, check_links
from laggard.resilience.command.link_lines import lines_on_links
from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.past_checks import (
    PastChecks,
    PastReadingsError,
    default_past_file,
    read_past,
    update_past,
)
from laggard.resilience.command.remote_check import NO_GPU, check_hosts
from laggard.resilience.command.run_options import HISTORY_OPTIONS, options_of_run
from laggard.resilience.command.state import node_history, site_access
from laggard.resilience.decision.site import Sighting
from laggard.resilience.errors import NodeHistoryError, UsageError
from laggard.resilience.record.node_history import NodeHistory
from laggard.resilience.text import abbreviated, counted, wrapped

MAX_COLUMNS = 6
WIDTH = 120
# Of the columns in front of the devices.
FIGURES_WIDTH = 24
# Of more devices than this, the healthy ones are only counted.
MAX_SHOWN = 48
_FAILING = "slow", "faulty"
NO_LINKS = LinkCheck()
EXIT_BAD_DEVICE = 1
EXIT_NOT_CHECKED = 3
"""Not 1, since a prolog would drain all nodes for a library that is missing."""


@click.command(short_help="Check the GPUs of this machine, or of many nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--virtual-gpus", type=click.IntRange(1, 64), metavar="K", help="Check the processor instead, as K virtual devices."
)
@click.option(
    "--past",
    "past_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the past readings of each device, and with the GPUs that each node had.  "
    "[default: laggard/devices.json in $XDG_STATE_HOME or ~/.local/state]",
)
@options_of_run(*HISTORY_OPTIONS)
@click.option(
    "--expect", type=click.IntRange(1), metavar="N", help="Report a node with fewer than N devices as faulty."
)
@click.option("--all-nodes", is_flag=True, help="Check and compare all nodes of the Slurm job.")
@click.option("--hostlist", metavar="A,B", help="Check and compare these hosts, over ssh.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="File with such hosts, one per line.")
def doctor(
    *,
    as_json: bool,
    virtual_gpus: int | None,
    past_file: Path | None,
    expect: int | None,
    all_nodes: bool,
    hostlist: str | None,
    hostfile: Path | None,
    **history_options: Any,
) -> int:
    """Check the GPUs of this machine or of many nodes, once, and report which are slow."""
    # All probes run on all devices. Each device is compared with the others of its model, and with its own past
    # readings. NVIDIA's driver is asked for faults, and for GPUs that were there before. The GPUs of a node copy to
    # each other, several nodes send each other transfers over TCP, and the slowest links are listed.
    # The exit code is 1 if a device is slow, gives wrong results, does not answer, is gone or has a fault; 3 if one
    # could not be checked, for a reason that says nothing about it, such as a missing library, or if there is none; 2
    # for wrong options; else 0.
    options = JobOptions(hostlist=hostlist, hostfile=hostfile, **history_options)
    history = node_history(options, site_access(options, os.environ))
    transports, names = _transports(options, all_nodes=all_nodes)
    path = past_file or default_past_file()
    try:
        if past_file is not None:
            _try_to_write(past_file)
        past = read_past(path)
        nodes = _check(transports, virtual_gpus or 0, shown=not as_json)
        checked = {(host, check.gpu): check for host, node in nodes.items() for check in node.checks}
        boards = {host: node.boards for host, node in nodes.items()}
        checks = with_faults(checked, boards, past.inventory, expect or 0)
        diagnoses = diagnose(checks, past.readings)
        where = _remember(path, checks, boards)
        if history is not None:
            _note(history, diagnoses)
        if not checks:  # no virtual devices stand in: a GPU that has left the bus would look healthy
            click.echo(f"laggard: {NO_GPU}", err=True)
            return EXIT_NOT_CHECKED
        with _progress(shown=not as_json) as progress:
            progress.add_task("measuring the links between the nodes")
            links = check_links(transports, names)
        peers = {host: node.peers for host, node in nodes.items()}
        click.echo(as_text(checks, diagnoses, links, peers, as_json=as_json, remark=where))
    except LaggardError as error:
        click.echo(f"laggard: {error}", err=True)
        return EXIT_NOT_CHECKED
    except Exception:  # noqa: BLE001 - a bug of ours, which Python would end with the exit code of a bad device
        traceback.print_exc()
        return EXIT_NOT_CHECKED
    return _exit_code({diagnosis.condition for diagnosis in diagnoses.values()})


def _check(transports: Mapping[str, Transport | None], virtual_gpus: int, *, shown: bool) -> dict[str, NodeCheck]:
    """Check the named hosts, or this machine alone."""
    with _progress(shown=shown) as progress:
        if not transports:
            task = progress.add_task("looking for devices")
            found = check_here(virtual_gpus, lambda one: progress.update(task, description=f"checked gpu {one.gpu}"))
            return {socket.gethostname(): found}
        task, answers = progress.add_task(f"checking {len(transports)} nodes"), dict[str, NodeCheck]()
        for host, answer in check_hosts(transports, virtual_gpus):
            answers[host] = answer
            progress.update(task, description=f"{len(answers)} of {len(transports)} nodes have answered")
    return {host: answers[host] for host in transports}


def _exit_code(conditions: AbstractSet[Condition]) -> int:
    if not conditions.isdisjoint(_FAILING):
        return EXIT_BAD_DEVICE
    return EXIT_NOT_CHECKED if "unchecked" in conditions else 0


def _transports(options: JobOptions, *, all_nodes: bool) -> tuple[dict[str, Transport | None], dict[str, str]]:
    """Return how to reach each host that the options name, and the names to look up; empty for this machine alone."""
    named = options.hostlist is not None or options.hostfile is not None
    if all_nodes and named:
        raise UsageError("--all-nodes is for a Slurm job, --hostlist and --hostfile are for ssh: use one of them")
    if all_nodes:
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "--all-nodes needs a Slurm job (SLURM_JOB_ID is not set): run it inside salloc or sbatch, "
                "or use --hostlist"
            )
        check_runs_once(os.environ)
        nodes = slurm_node_names()
        return dict.fromkeys(nodes, Srun()), {node: node for node in nodes}
    if not named:
        return {}, {}
    hosts = named_hosts(options.hostlist, options.hostfile)
    ssh = Ssh(hosts)
    names = ssh.names_of(hosts)
    return {host: None if is_this_machine(name) else ssh for host, name in names.items()}, names


def _note(history: NodeHistory, diagnoses: Mapping[DeviceId, Diagnosis]) -> None:
    """Note each failing device of a node in the site's memory."""
    name = f"doctor-{time.strftime('%Y%m%d')}"  # once a day: a prolog runs often
    noted = [
        Sighting(host, time.time(), "failed", name, f"gpu {gpu}: {'; '.join(found.reasons)}")
        for (host, gpu), found in diagnoses.items()
        if found.condition in _FAILING
    ]
    try:
        history.add(f"{name}-{os.getuid()}", *noted)
    except NodeHistoryError as error:
        click.echo(f"laggard: nothing can be added to --node-history: {error.reason}", err=True)


def _progress(*, shown: bool) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, transient=True, disable=not (shown and sys.stderr.isatty()))


def _try_to_write(past_file: Path) -> None:
    """Find out before the checks, which take a while, whether they can be remembered."""
    try:
        with contextlib.suppress(PastReadingsError):  # which is said where they are read
            update_past(past_file, lambda past: past)
    except OSError as error:
        raise UsageError(f"--past={past_file}", "cannot be written", f"{error.strerror}; name another file") from error


def _remember(path: Path, checks: Mapping[DeviceId, DeviceCheck], boards: Mapping[str, Boards]) -> str:
    """Add these checks to the past ones; return a sentence on the GPUs that are remembered."""

    def with_these(past: PastChecks) -> PastChecks:
        return PastChecks(remembered(past.readings, checks), inventoried(past.inventory, boards))

    try:
        update_past(path, with_these)
    except OSError as error:
        click.echo(f"laggard: cannot write past readings to {path}: {error}", err=True)
        return ""
    count = sum(bool(board.uuid) for listed in boards.values() for board in listed.found)
    return f"{counted(count, 'GPU is', 'GPUs are')} remembered in {path}" if count else ""


# -- output ------------------------------------------------------------------------------------------------------------


def as_text(
    checks: Mapping[DeviceId, DeviceCheck],
    diagnoses: Mapping[DeviceId, Diagnosis],
    links: LinkCheck = NO_LINKS,
    peers: Mapping[str, PeerCheck] = MappingProxyType({}),
    *,
    as_json: bool,
    remark: str = "",
) -> str:
    """Return the doctor's output: a table, a line for each reason and a remark, or the same as JSON."""
    if as_json:
        devices = [
            {"host": device[0], **asdict(check), "cause": str(check.cause), **asdict(diagnoses[device])}
            for device, check in checks.items()
        ]
        measured = {"links": [asdict(each) for each in links.readings]} if links.readings else {}
        between = [{"host": host, **asdict(each)} for host, check in peers.items() for each in check.peers]
        measured |= {"gpu_links": between} if between else {}
        return json.dumps({"devices": devices, **measured}, indent=1)
    shown = checks
    if len(checks) > MAX_SHOWN:
        shown = {device: check for device, check in checks.items() if diagnoses[device].condition != "ok"}
    if len(shown) > MAX_SHOWN:
        shown = {device: check for device, check in shown.items() if check.figures}
    names = [len(_name(*device)) for device in shown]
    columns = max(1, min(MAX_COLUMNS, (WIDTH - FIGURES_WIDTH) // (max(names, default=0) + 2)))
    starts = range(0, len(shown), columns)
    tables = [_table(dict(islice(shown.items(), start, start + columns)), diagnoses) for start in starts]
    of_links = [*lines_on_gpu_links(peers), *lines_on_links(links)]
    lines = [*_lines(checks, diagnoses, remark), *of_links]
    return "\n\n".join([*tables, "\n".join(lines)])


def _table(checks: Mapping[DeviceId, DeviceCheck], diagnoses: Mapping[DeviceId, Diagnosis]) -> str:
    units = {probe: unit for check in checks.values() for probe, (_, unit) in check.figures.items()}
    one_host = len({host for host, _ in diagnoses}) == 1
    rows = [["probe", "unit", *(f"gpu {gpu}" if one_host else _name(host, gpu) for host, gpu in checks)]]
    for probe, unit in units.items():
        figures = [check.figures.get(probe) for check in checks.values()]
        rows.append([probe, unit, *("-" if figure is None else f"{figure[0]:.4g}" for figure in figures)])
    rows.append(["verdict", "", *(diagnoses[device].condition for device in checks)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _name(host: str, gpu: str, between: str = " ") -> str:
    return host if gpu == ALL_DEVICES else f"{host}{between}{gpu}"


def _lines(checks: Mapping[DeviceId, DeviceCheck], diagnoses: Mapping[DeviceId, Diagnosis], remark: str) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for (host, gpu), diagnosis in diagnoses.items():
        for reason in diagnosis.reasons:
            by_reason.setdefault(reason, []).append(_name(host, gpu, " gpu "))
    lines = [wrapped(f"{abbreviated(names)}: {reason}", WIDTH, 4) for reason, names in by_reason.items()]
    models = sorted({check.model for check in checks.values() if check.model})
    devices = [device for device in checks if device[1] != ALL_DEVICES]
    if len(devices) == 1:
        lines.append("only one device: compared with its own past readings, not with peers")
    lines += [remark] if remark else []
    n_ok = sum(diagnoses[device].condition == "ok" for device in devices)
    hosts = {host for host, _ in checks}
    n_without = len(hosts - {host for host, _ in devices}) if len(hosts) > 1 else 0
    without = f"; none checked on {counted(n_without, 'node', 'nodes')}" if n_without else ""
    of_models = f" ({'; '.join(models)})" if models else ""
    return [*lines, f"{n_ok} of {len(devices)} devices ok{of_models}{without}"]
