"""What the first process on a remote node sends, before it becomes the node's agent."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.resilience.wire.message import Report

HANDSHAKE = b'{"is": "Handshake",'
"""What its line begins with; the start-up files of a shell may have printed others before."""


@dataclass(frozen=True, slots=True)
class Handshake(Report):
    """What the node has."""

    n_cpus: int  # that we may use
    gpus: tuple[str, ...]  # their names, as in CUDA_VISIBLE_DEVICES there
    node: str = ""  # its name, if one command has started this on many nodes
