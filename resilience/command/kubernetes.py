"""``laggard kubernetes``: writes a manifest for a user's own command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, get_args

import click
import yaml

from laggard.resilience.command.manifest import Kind, Pods, manifests
from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.run import run


@click.command(short_help="Write a manifest for a Kubernetes job.", context_settings={"allow_interspersed_args": False})
@click.option(
    "--kind", type=click.Choice(get_args(Kind)), default="jobset", show_default=True, help="Kind of manifest."
)
@click.option("--name", default="train", show_default=True, help="Name of the job.")
@click.option("--image", required=True, help="Image with laggard and the program.")
@click.option("--nodes", "n_nodes", type=click.IntRange(1), required=True, help="Number of pods, one on each machine.")
@click.option("--gpus-per-node", type=click.IntRange(0), required=True, help="GPUs per pod.")
@click.option(
    "--gpu-resource", default="nvidia.com/gpu", show_default=True, help="The cluster's resource name for a GPU."
)
@click.option("--cpus", metavar="QUANTITY", help="Processors per pod.")
@click.option("--memory", metavar="QUANTITY", help="Memory per pod, such as 128Gi.")
@click.option("--shared-memory", metavar="QUANTITY", default="16Gi", show_default=True, help="Size of /dev/shm.")
@click.option("--claim", metavar="NAME", help="Volume claim for State, which all pods can mount (ReadWriteMany).")
@click.option("--queue", metavar="NAME", help="Queue of Kueue.")
@click.option(
    "--service-account", metavar="NAME", help="Account that may patch nodes: verdicts become annotations on them."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def kubernetes(as_typed: Sequence[str], /, kind: Kind, command: tuple[str, ...], **pods: Any) -> None:
    """Write a manifest that runs 'laggard run COMMAND' in each pod of a Kubernetes job.

    COMMAND: laggard's options, the program and its arguments, after '--'.
    """
    given = run.make_context("laggard run", list(command)).params
    options = JobOptions(**{name: value for name, value in given.items() if name not in {"program", "arguments"}})
    objects = manifests(kind, Pods(**pods), command, options.grace_s)
    name = pods["name"]
    secret = f'kubectl create secret generic {name}-join --from-literal=secret="$(openssl rand -hex 32)"'
    click.echo(f"# Written by: {shlex.join(['laggard', *as_typed])}\n# It needs a secret: {secret}")
    click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)
