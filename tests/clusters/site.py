"""A site as users know it: four nodes, an ordinary user, one home, and a /tmp of each node's own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.clusters.machines import PRIVATE, Machine, Network

__all__ = ["NODES", "UID", "USER", "Site", "on_site"]

NODES = ("nid001-ib", "nid002-ib", "nid003-ib", "nid007-ib")
USER = "ada"
UID = 20001
TMP = "/tmp"  # noqa: S108 - the machines' own
_ROOT = Path(__file__).resolve().parents[2]
# A folder becomes the machine's own, but for what all machines share.
_OWN_FOLDER = """
set -e
number=0
for shared in {shared}; do
    number=$((number + 1))
    mkdir {private}/$number
    mount --bind "$shared" {private}/$number
done
mount -t tmpfs -o mode={mode} tmpfs {folder}
number=0
for shared in {shared}; do
    number=$((number + 1))
    mkdir -p "$shared"
    mount --move {private}/$number "$shared"
    rmdir {private}/$number
done
"""


def on_site(printed: str) -> str:
    """Return a printed command or file, with the nodes of the site for those of the guides."""
    return re.sub(r"\bnode(\d)\b", lambda found: NODES[int(found[1]) - 1], printed)


class _SiteNetwork(Network):
    """A network whose machines are furnished, also those that replace crashed ones."""

    def __init__(self, folder: Path, names: Sequence[str], furnish: Callable[[Machine], None]) -> None:
        self._furnish = furnish
        super().__init__(folder, names)
        furnish(self.login)

    def _boot(self, name: str, address: str) -> None:
        super()._boot(name, address)
        self._furnish(self.nodes[name])


class Site:
    """Machines with the accounts and folders of a site.

    Parameters
    ----------
    folder
        Shared by all machines; its path can be read by everybody.
    names
        Names of the nodes.
    """

    def __init__(self, folder: Path, names: Sequence[str] = NODES) -> None:
        self.folder = folder
        self.home = folder / "home" / USER
        self.home.mkdir(parents=True, mode=0o755)
        self.give(self.home)
        accounts = Path("/etc/passwd").read_text()
        (folder / "passwd").write_text(f"{accounts}{USER}:*:{UID}:{UID}::{self.home}:/bin/bash\n")
        (folder / "group").write_text(f"{Path('/etc/group').read_text()}{USER}:*:{UID}:\n")
        self.network = _SiteNetwork(folder, names, self._furnish)

    def _furnish(self, machine: Machine) -> None:
        """Give a machine the accounts and its own /tmp."""
        for name in ("passwd", "group"):
            machine.run("mount", "--bind", str(self.folder / name), f"/etc/{name}")
        for folder, mode in {**dict.fromkeys(map(str, self._closed()), "755"), TMP: "1777"}.items():
            shared = " ".join(shlex.quote(str(path)) for path in self.needed() if path.is_relative_to(folder))
            machine.run("sh", "-c", _OWN_FOLDER.format(folder=folder, mode=mode, shared=shared, private=PRIVATE))

    def needed(self) -> list[Path]:
        """Return which folders the user's processes need on every machine; none is within another."""
        found = {self.folder, _ROOT, *map(Path, (sys.prefix, sys.base_prefix, *sys.path))}
        existing = {path for path in found if path.is_absolute() and path.is_dir()}
        return sorted(path for path in existing if existing.isdisjoint(path.parents))

    def _closed(self) -> list[Path]:
        """Return the folders through which the user may not go to what is needed: where root has Python, perhaps."""
        above = {parent for path in self.needed() for parent in path.parents}
        closed = {path for path in above if not path.stat().st_mode & stat.S_IXOTH}
        return sorted(path for path in closed if closed.isdisjoint(path.parents))

    def machines(self) -> list[Machine]:
        """Return the nodes and the login machine."""
        return [*self.network.nodes.values(), self.network.login]

    def as_user(self, *argv: str) -> list[str]:
        """Return the command that runs ``argv`` as the ordinary user, in a fresh login's environment but for PATH."""
        return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *argv]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the ordinary user's environment."""
        return {"PATH": os.environ["PATH"], **base, "HOME": str(self.home), "USER": USER, "LOGNAME": USER}

    def folder_of_user(self) -> Path:
        """Return the user's folder of the present test."""
        folder = self.home / "work"
        folder.mkdir(exist_ok=True)
        self.give(folder)
        return folder

    def give(self, path: Path) -> None:
        """Make the user the owner of a file or a folder."""
        os.chown(path, UID, UID)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user's, below the home."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        subprocess.run(["chown", "-R", f"{UID}:{UID}", str(self.home)], check=True)
        return path

    def find(self, machine: Machine, *expression: str) -> list[str]:
        """Return which of the user's files in a machine's own /tmp fit an expression of ``find``."""
        # What all machines share may lie below /tmp as well, such as the wheel that is tested: -xdev passes over it.
        return machine.run("find", TMP, "-ignore_readdir_race", "-xdev", *expression, "-user", str(UID)).split()

    def clean(self) -> None:
        """Remove the user's files of a test, and what its processes have left on each node."""
        shutil.rmtree(self.home / "work", ignore_errors=True)
        for machine in self.machines():
            machine.run("rm", "-rf", *self.find(machine, "-maxdepth", "1"))

    def shut_down(self) -> None:
        """End all machines."""
        self.network.shut_down()
