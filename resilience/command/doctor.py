"""``laggard doctor``: checks the devices of this machine or of many nodes, once, and reports which are slow."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from laggard.collectors.device import DeviceId
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.supervised_check import check_devices_here, device_environment
from laggard.detectors.diagnosis import Condition, Diagnosis, Past, diagnose, remembered
from laggard.errors import LaggardError
from laggard.resilience.allocation.network import is_this_machine
from laggard.resilience.allocation.remote import Transport
from laggard.resilience.allocation.slurm import Srun, slurm_node_names
from laggard.resilience.allocation.ssh import Ssh, ssh_host_names
from laggard.resilience.command.remote_check import check_hosts
from laggard.resilience.decision.options import JobOptions, UsageError
from laggard.resilience.text import counted

__all__ = ["PastReadingsError", "doctor"]

PAST_FORMAT = "laggard-devices-1"
MAX_COLUMNS = 6
# Of more devices than this, the healthy ones are only counted.
MAX_SHOWN = 48
DEFAULT_VIRTUAL_DEVICES = 2
_FAILING = "slow", "faulty"
EXIT_BAD_DEVICE = 1
EXIT_NOT_CHECKED = 3
"""Not 1, since a prolog would drain all nodes for a library that is missing."""


class PastReadingsError(LaggardError, ValueError):
    """The file of past readings cannot be read.

    Attributes
    ----------
    path
        The file.
    reason
        What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot read past readings from {self.path} ({self.reason}): "
            "--forget discards them, --past names another file"
        )


@click.command(short_help="Check the GPUs of this machine, or of many nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--virtual-gpus",
    type=click.IntRange(1, 64),
    metavar="K",
    help="Check K virtual devices.  [default: the machine's GPUs, or 2 virtual devices if it has none]",
)
@click.option(
    "--past",
    "past_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the past readings of each device.  "
    "[default: laggard/devices.json in $XDG_STATE_HOME or ~/.local/state]",
)
@click.option(
    "--expect",
    type=click.IntRange(1),
    metavar="N",
    help="Report a node with fewer than N devices as faulty. No virtual devices stand in for them.",
)
@click.option("--forget", is_flag=True, help="Discard all past readings first.")
@click.option("--all-nodes", is_flag=True, help="Check and compare all nodes of the Slurm job.")
@click.option("--hostlist", metavar="A,B", help="Check and compare these hosts, over ssh.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="File with such hosts, one per line.")
def doctor(
    *,
    as_json: bool,
    virtual_gpus: int | None,
    past_file: Path | None,
    expect: int | None,
    forget: bool,
    all_nodes: bool,
    hostlist: str | None,
    hostfile: Path | None,
) -> int:
    """Check the GPUs of this machine or of many nodes, once, and report which are slow.

    All probes run on all devices. Each device is compared with the others of its model, and with its own past
    readings. On a machine without GPUs, the processor is checked instead, as virtual devices.

    The exit code is 1 if a device is slow, gives wrong results or does not answer; 3 if one could not be checked, for a
    reason that says nothing about it, such as a missing library; 2 for wrong options; else 0.
    """
    transports = _transports(JobOptions(hostlist=hostlist, hostfile=hostfile), all_nodes=all_nodes)
    path = past_file or _default_past_file()
    try:
        past = {} if forget else _read_past(path)
        checks = _check(transports, virtual_gpus, expect, shown=not as_json)
        diagnoses = diagnose(checks, past)
        _write_past(path, remembered(past, checks))
        click.echo(as_text(checks, diagnoses, as_json=as_json))
    except LaggardError as error:
        click.echo(f"laggard: {error}", err=True)
        return EXIT_NOT_CHECKED
    except Exception:  # noqa: BLE001 - a bug of ours, which Python would end with the exit code of a bad device
        traceback.print_exc()
        return EXIT_NOT_CHECKED
    return _exit_code({diagnosis.condition for diagnosis in diagnoses.values()})


def _check(
    transports: Mapping[str, Transport | None], virtual_gpus: int | None, expect: int | None, *, shown: bool
) -> dict[DeviceId, DeviceCheck]:
    here = socket.gethostname()
    if transports:
        checks = _check_nodes(transports, virtual_gpus or 0, shown=shown)
    else:
        on_this = _check_this_machine(virtual_gpus, stand_in=expect is None, shown=shown)
        checks = {(here, check.gpu): check for check in on_this}
    return {**_too_few(checks, transports or [here], expect or 0), **checks}


def _too_few(
    checks: Mapping[DeviceId, DeviceCheck], hosts: Iterable[str], expected: int
) -> dict[DeviceId, DeviceCheck]:
    """Return a check of all devices that says so, for each host with fewer than expected."""
    present = Counter(host for host, gpu in checks if gpu != ALL_DEVICES)
    return {
        (host, ALL_DEVICES): DeviceCheck(
            ALL_DEVICES, trouble=f"{present[host]} of {expected} expected devices are there"
        )
        for host in hosts
        if present[host] < expected
    }


def _exit_code(conditions: AbstractSet[Condition]) -> int:
    if not conditions.isdisjoint(_FAILING):
        return EXIT_BAD_DEVICE
    return EXIT_NOT_CHECKED if "unchecked" in conditions else 0


def _transports(options: JobOptions, *, all_nodes: bool) -> dict[str, Transport | None]:
    """Return how to reach each host that the options name; empty for this machine alone."""
    named = options.hostlist is not None or options.hostfile is not None
    if all_nodes and named:
        raise UsageError("--all-nodes is for a Slurm job, --hostlist and --hostfile are for ssh: use one of them")
    if all_nodes:
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "--all-nodes needs a Slurm job (SLURM_JOB_ID is not set): run it inside salloc or sbatch, "
                "or use --hostlist"
            )
        return dict.fromkeys(slurm_node_names(), Srun())
    if not named:
        return {}
    names = ssh_host_names(options.hosts())
    return {host: None if is_this_machine(name) else Ssh() for host, name in names.items()}


def _check_nodes(
    transports: Mapping[str, Transport | None], virtual_gpus: int, *, shown: bool
) -> dict[DeviceId, DeviceCheck]:
    answers: dict[str, list[DeviceCheck]] = {}
    with _progress(shown=shown) as progress:
        task = progress.add_task(f"checking {len(transports)} nodes")
        for host, checks in check_hosts(transports, virtual_gpus):
            answers[host] = checks
            progress.update(task, description=f"{len(answers)} of {len(transports)} nodes have answered")
    return {(host, check.gpu): check for host in transports for check in answers[host]}


def _check_this_machine(virtual_gpus: int | None, *, stand_in: bool, shown: bool) -> list[DeviceCheck]:
    with tempfile.TemporaryDirectory(prefix="laggard-doctor-") as directory:
        checks = _with_progress(device_environment(virtual_gpus or 0, directory), shown=shown)
        if checks or virtual_gpus or not stand_in:
            return checks
        click.echo(
            f"no GPU found: checking the processor instead, as {DEFAULT_VIRTUAL_DEVICES} virtual devices", err=True
        )
        return _with_progress(device_environment(DEFAULT_VIRTUAL_DEVICES, directory), shown=shown)


def _with_progress(environment: Mapping[str, str], *, shown: bool) -> list[DeviceCheck]:
    checks = []
    with _progress(shown=shown) as progress:
        task = progress.add_task("looking for devices")
        for check in check_devices_here(environment):
            checks.append(check)
            progress.update(task, description=f"checked gpu {check.gpu}")
    return checks


def _progress(*, shown: bool) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, transient=True, disable=not (shown and sys.stderr.isatty()))


# -- past readings -----------------------------------------------------------------------------------------------------


def _default_past_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "laggard", "devices.json")


def _read_past(path: Path) -> Past:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text())[PAST_FORMAT])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PastReadingsError(path, f"{type(error).__name__}: {error}") from error


def _write_past(path: Path, past: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Replace the file atomically: another doctor may be reading it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({PAST_FORMAT: past}, file)
        Path(file.name).replace(path)
    except OSError as error:
        click.echo(f"laggard: cannot write past readings to {path}: {error}", err=True)


# -- output ------------------------------------------------------------------------------------------------------------


def as_text(checks: Mapping[DeviceId, DeviceCheck], diagnoses: Mapping[DeviceId, Diagnosis], *, as_json: bool) -> str:
    """Return the doctor's output: a table and a line for each reason, or the same as JSON."""
    if as_json:
        devices = [
            {"host": device[0], **asdict(check), **asdict(diagnoses[device])} for device, check in checks.items()
        ]
        return json.dumps({"devices": devices}, indent=1)
    shown = checks
    if len(checks) > MAX_SHOWN:
        shown = {device: check for device, check in checks.items() if diagnoses[device].condition != "ok"}
    starts = range(0, len(shown), MAX_COLUMNS)
    groups = [dict(islice(shown.items(), start, start + MAX_COLUMNS)) for start in starts]
    tables = [_table(group, diagnoses) for group in groups]
    return "\n\n".join([*tables, "\n".join(_lines(checks, diagnoses))])


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


def _lines(checks: Mapping[DeviceId, DeviceCheck], diagnoses: Mapping[DeviceId, Diagnosis]) -> list[str]:
    lines = [
        f"{_name(host, gpu, ' gpu ')}: {reason}"
        for (host, gpu), diagnosis in diagnoses.items()
        for reason in diagnosis.reasons
    ]
    models = sorted({check.model for check in checks.values() if check.model})
    devices = [device for device in checks if device[1] != ALL_DEVICES]
    if len(devices) == 1:
        lines.append("only one device: compared with its own past readings, not with peers")
    n_ok = sum(diagnoses[device].condition == "ok" for device in devices)
    n_silent = len({host for host, _ in checks} - {host for host, _ in devices})
    silent = f"; no answer from {counted(n_silent, 'node', 'nodes')}" if n_silent else ""
    return [*lines, f"{n_ok} of {len(devices)} devices ok ({'; '.join(models)}){silent}"]
