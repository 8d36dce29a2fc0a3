"""``laggard doctor``: check the devices of this machine, or of many nodes, once, and say which are slow."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from collectors.checkup import Checkup
from collectors.checkups import ALL_DEVICES, checkups_here, device_environment
from detectors.examination import Diagnosis, Past, examine, remembered
from detectors.readings import Device
from resilience.allocation.addresses import is_this_machine
from resilience.allocation.remote import Transport
from resilience.allocation.slurm import Srun, slurm_node_names
from resilience.allocation.ssh import Ssh, ssh_host_names
from resilience.options import JobOptions, UsageError
from resilience.visits import visits

__all__ = ["doctor"]

PAST_FORMAT = "laggard-devices-1"
COLUMNS_IN_A_BLOCK = 6
# Of more devices the healthy ones are only counted.
MAX_SHOWN = 48
VIRTUAL_DEVICES_WITHOUT_GPUS = 2
_FAILING = "slow", "faulty"


@click.command(short_help="Check the GPUs of this machine, or of many nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--virtual-gpus",
    type=click.IntRange(1, 64),
    metavar="K",
    help="Check K virtual devices.  [default: the machine's GPUs; 2 virtual devices where there are none]",
)
@click.option(
    "--past",
    "past_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What is remembered of each device.  [default: laggard/devices.json in $XDG_STATE_HOME or ~/.local/state]",
)
@click.option("--forget", is_flag=True, help="Begin the past anew.")
@click.option("--all-nodes", is_flag=True, help="Check all nodes of Slurm's job, and compare them all.")
@click.option("--hostlist", metavar="A,B", help="Check these hosts, reached by ssh, and compare them all.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="File with such hosts, one a line.")
def doctor(
    *,
    as_json: bool,
    virtual_gpus: int | None,
    past_file: Path | None,
    forget: bool,
    all_nodes: bool,
    hostlist: str | None,
    hostfile: Path | None,
) -> int:
    """Check the GPUs of this machine, or of many nodes, once, and say which are slow.

    All probes run on all devices. Devices of one model are compared with one another, and each with its own past.
    Without GPUs the processor of this machine stands in, as virtual devices.

    The exit code is 1 if a device is slow, computes wrongly or does not answer; 0 otherwise.
    """
    where = past_file or _default_past()
    past = {} if forget else _read_past(where)
    transports = _transports(JobOptions(hostlist=hostlist, hostfile=hostfile), all_nodes=all_nodes)
    if transports:
        checkups = _check_nodes(transports, virtual_gpus or 0, shown=not as_json)
    else:
        here = socket.gethostname()
        checkups = {(here, checkup.gpu): checkup for checkup in _check_all(virtual_gpus, shown=not as_json)}
    diagnoses = examine(checkups, past)
    _write_past(where, remembered(past, checkups))
    click.echo(as_text(checkups, diagnoses, as_json=as_json))
    return int(any(diagnosis.condition in _FAILING for diagnosis in diagnoses.values()))


def _transports(options: JobOptions, *, all_nodes: bool) -> dict[str, Transport | None]:
    """Return how each host that is asked for is reached; none where only this machine is."""
    named = options.hostlist is not None or options.hostfile is not None
    if all_nodes and named:
        raise UsageError("--all-nodes is for Slurm's job, --hostlist and --hostfile are for ssh: leave one out")
    if all_nodes:
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "--all-nodes needs a job of Slurm's (SLURM_JOB_ID): run it inside salloc or sbatch, or name --hostlist"
            )
        return dict.fromkeys(slurm_node_names(), Srun())
    if not named:
        return {}
    names = ssh_host_names(options.hosts())
    return {host: None if is_this_machine(name) else Ssh() for host, name in names.items()}


def _check_nodes(
    transports: Mapping[str, Transport | None], virtual_gpus: int, *, shown: bool
) -> dict[Device, Checkup]:
    found: dict[str, list[Checkup]] = {}
    with _progress(shown=shown) as progress:
        task = progress.add_task(f"{len(transports)} nodes are checked")
        for host, checkups in visits(transports, virtual_gpus):
            found[host] = checkups
            progress.update(task, description=f"{len(found)} of {len(transports)} nodes have answered")
    return {(host, checkup.gpu): checkup for host in transports for checkup in found[host]}


def _check_all(virtual_gpus: int | None, *, shown: bool) -> list[Checkup]:
    with tempfile.TemporaryDirectory(prefix="laggard-doctor-") as directory:
        found = _with_progress(device_environment(virtual_gpus or 0, directory), shown=shown)
        if found or virtual_gpus:
            return found
        click.echo("no GPU here: the processor stands in, as 2 virtual devices", err=True)
        return _with_progress(device_environment(VIRTUAL_DEVICES_WITHOUT_GPUS, directory), shown=shown)


def _with_progress(environment: Mapping[str, str], *, shown: bool) -> list[Checkup]:
    found = []
    with _progress(shown=shown) as progress:
        task = progress.add_task("looking for devices")
        for checkup in checkups_here(environment):
            found.append(checkup)
            progress.update(task, description=f"gpu {checkup.gpu} is checked")
    return found


def _progress(*, shown: bool) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, transient=True, disable=not (shown and sys.stderr.isatty()))


# -- the past ----------------------------------------------------------------------------------------------------------


def _default_past() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "laggard", "devices.json")


def _read_past(where: Path) -> Past:
    if not where.exists():
        return {}
    try:
        return dict(json.loads(where.read_text())[PAST_FORMAT])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{where}, the devices' past, cannot be read ({type(error).__name__}: {error}): "
            "--forget begins it anew, --past names another file"
        ) from error


def _write_past(where: Path, past: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Replace the file whole: another doctor may read it now."""
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=where.parent, delete=False) as file:
            json.dump({PAST_FORMAT: past}, file)
        Path(file.name).replace(where)
    except OSError as error:
        click.echo(f"laggard: {where}, the devices' past, cannot be written: {error}", err=True)


# -- what is told ------------------------------------------------------------------------------------------------------


def as_text(checkups: Mapping[Device, Checkup], diagnoses: Mapping[Device, Diagnosis], *, as_json: bool) -> str:
    """Return what the doctor says: a table and a sentence for each reason, or the same as JSON."""
    if as_json:
        devices = [
            {"host": device[0], **asdict(checkup), **asdict(diagnoses[device])} for device, checkup in checkups.items()
        ]
        return json.dumps({"devices": devices}, indent=1)
    shown = checkups
    if len(checkups) > MAX_SHOWN:
        shown = {device: checkup for device, checkup in checkups.items() if diagnoses[device].condition != "ok"}
    starts = range(0, len(shown), COLUMNS_IN_A_BLOCK)
    parts = [dict(islice(shown.items(), start, start + COLUMNS_IN_A_BLOCK)) for start in starts]
    blocks = [_block(part, diagnoses) for part in parts]
    return "\n\n".join([*blocks, "\n".join(_sentences(checkups, diagnoses))])


def _block(checkups: Mapping[Device, Checkup], diagnoses: Mapping[Device, Diagnosis]) -> str:
    units = {probe: unit for checkup in checkups.values() for probe, (_, unit) in checkup.figures.items()}
    one_host = len({host for host, _ in diagnoses}) == 1
    rows = [["probe", "unit", *(f"gpu {gpu}" if one_host else _name(host, gpu) for host, gpu in checkups)]]
    for probe, unit in units.items():
        figures = [checkup.figures.get(probe) for checkup in checkups.values()]
        rows.append([probe, unit, *("-" if figure is None else f"{figure[0]:.4g}" for figure in figures)])
    rows.append(["verdict", "", *(diagnoses[device].condition for device in checkups)])
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


def _sentences(checkups: Mapping[Device, Checkup], diagnoses: Mapping[Device, Diagnosis]) -> list[str]:
    told = [
        f"{_name(host, gpu, ' gpu ')}: {reason}" for (host, gpu), found in diagnoses.items() for reason in found.reasons
    ]
    models = sorted({checkup.model for checkup in checkups.values() if checkup.model})
    devices = [device for device in checkups if device[1] != ALL_DEVICES]
    if len(devices) == 1:
        told.append("one device: there are no peers to compare it with, only its own past")
    good = sum(diagnoses[device].condition == "ok" for device in devices)
    silent = len({host for host, gpu in checkups if gpu == ALL_DEVICES})
    without = f"; {silent} {'node' if silent == 1 else 'nodes'} without an answer" if silent else ""
    return [*told, f"{good} of {len(devices)} devices ok ({'; '.join(models)}){without}"]
