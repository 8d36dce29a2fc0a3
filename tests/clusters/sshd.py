"""Real sshd on every machine, and an ssh configuration such as a user may have."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.clusters.machines import DEADLINE_S, Machine, Network, wait_for
from tests.clusters.site import Site

__all__ = ["ALIAS", "PROGRAMS", "SITE_PORTS", "ssh_daemons", "ssh_daemons_of"]

PROGRAMS = ("/usr/sbin/sshd", "ssh", "ssh-keygen")
SITE_PORTS = (22, 2222)
ALIAS = "spare"  # what the user's configuration calls the last node

_DAEMON = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
"""
_USER = """\
Host {alias}
    HostName {last}
Host *
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


@contextlib.contextmanager
def ssh_daemons(folder: Path, network: Network) -> Iterator[Callable[[Machine], None]]:
    """Start sshd on every node, and give each node the user's ssh configuration, while the block lasts.

    Yields what does so on a node that has replaced a crashed one.
    """
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=DEADLINE_S
        )
    public = (folder / "host_key.pub").read_text()
    known = "".join(f"{name},{node.address} {public}" for name, node in network.nodes.items())
    (folder / "known_hosts").write_text(known)
    (folder / "sshd_config").write_text(_DAEMON.format(folder=folder))
    user = folder / "user"
    user.mkdir(mode=0o700)
    *_, last = network.nodes
    (user / "config").write_text(_USER.format(folder=folder, alias=ALIAS, last=last))
    with _home_folder(), (folder / "sshd.out").open("ab") as output:
        daemons = []

        def start(node: Machine) -> None:
            node.run("mount", "--bind", str(user), str(Path.home() / ".ssh"))
            node.run("mount", "-t", "tmpfs", "tmpfs", "/run")
            node.run("mkdir", "/run/sshd")
            daemons.append(node.start("/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config"), output=output))

        for node in network.nodes.values():
            start(node)
        for node in network.nodes.values():
            wait_for(partial(_answers, node), f"sshd on {node.name}")
        yield start
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(DEADLINE_S)


@contextlib.contextmanager
def ssh_daemons_of(site: Site) -> Iterator[None]:
    """Start sshd on the nodes of a site, at two ports, where its user may log in, while the block lasts."""
    folder = site.folder / "sshd"
    folder.mkdir()
    for key in (folder / "host_key", site.home / ".ssh" / "id_ed25519"):
        key.parent.mkdir(exist_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
    public = (folder / "host_key.pub").read_text()
    ports = "".join(f"Port {port}\n" for port in SITE_PORTS)
    keys = f"HostKey {folder}/host_key\nAuthorizedKeysFile {site.home}/.ssh/id_ed25519.pub\n"
    (folder / "sshd_config").write_text(f"{ports}{keys}PidFile none\nStrictModes no\nUsePAM no\n")
    names = [f"{name},[{name}]:{SITE_PORTS[1]}" for name in site.network.nodes]
    site.write(".ssh/known_hosts", "".join(f"{name} {public}" for name in names))
    with (folder / "sshd.out").open("ab") as output:
        daemons = []
        for node in site.network.nodes.values():
            node.run("mount", "-t", "tmpfs", "tmpfs", "/run")
            node.run("mkdir", "/run/sshd")
            daemons.append(node.start("/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config"), output=output))
        for node in site.network.nodes.values():
            wait_for(partial(_answers, node, site), f"sshd on {node.name}")
        yield
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(DEADLINE_S)


def _answers(node: Machine, site: Site | None = None) -> bool:
    command = ("ssh", node.name, "echo", "up")
    if site is None:
        return node.run(*command, check=False) == "up\n"
    return node.run(*site.as_user(*command), environment=site.environment({}), check=False) == "up\n"


@contextlib.contextmanager
def _home_folder() -> Iterator[None]:
    """Make sure that there is a folder to mount the configuration on."""
    folder = Path.home() / ".ssh"
    made = not folder.exists()
    if made:
        folder.mkdir(mode=0o700)
    try:
        yield
    finally:
        if made:
            folder.rmdir()
