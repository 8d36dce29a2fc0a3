"""Which file systems of this machine are elsewhere, as ``/proc/self/mountinfo`` says without asking them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

_OF_NETWORK = re.compile(
    r"nfs\d?|lustre|ceph|cifs|smb\d?|beegfs|gpfs|9p|afs|wekafs|pvfs2|orangefs|panfs|glusterfs|fuse(\..+)?|fuseblk"
)
MOUNTS = Path("/proc/self/mountinfo")


def network_mounts(table: Path = MOUNTS) -> list[str]:
    """Return where file systems of the network are mounted, the deepest folders first."""
    found = set()
    for line in table.read_text().splitlines():
        before, _, after = line.partition(" - ")
        if _OF_NETWORK.fullmatch(after.split(" ", 1)[0]):
            found.add(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4]))
    return sorted(found, key=lambda folder: (-len(folder), folder))


def is_network_mount(path: str) -> bool:
    """Return whether a path is on a file system of the network, without touching it."""
    absolute = os.path.normpath(os.path.join(os.getcwd(), path))  # noqa: PTH118, PTH109 - resolve() would touch it
    return bool(mount_of(absolute, network_mounts()))


def mount_of(path: str, mounts: Sequence[str]) -> str:
    """Return the first of these mounts that an absolute path is on; empty if it is on none."""
    return next((each for each in mounts if path == each or path.startswith(f"{each.rstrip('/')}/")), "")
