"""Real sshd on the nodes of a site, and an ssh configuration such as its user may have."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

from tests.clusters.machines import DEADLINE_S, Machine, wait_for
from tests.clusters.site import Site

__all__ = ["ALIAS", "PORTS", "PROGRAMS", "ssh_daemons"]

PROGRAMS = ("/usr/sbin/sshd", "ssh", "ssh-keygen")
PORTS = (22, 2222)
ALIAS = "spare"  # what the user's configuration calls the last node


@contextlib.contextmanager
def ssh_daemons(site: Site) -> Iterator[None]:
    """Start sshd on the nodes, at two ports, where the user may log in, while the block lasts."""
    folder = site.folder / "sshd"
    folder.mkdir()
    for key in (folder / "host_key", site.home / ".ssh" / "id_ed25519"):
        key.parent.mkdir(exist_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
    ports = "".join(f"Port {port}\n" for port in PORTS)
    keys = f"HostKey {folder}/host_key\nAuthorizedKeysFile {site.home}/.ssh/id_ed25519.pub\n"
    (folder / "sshd_config").write_text(f"{ports}{keys}PidFile none\nStrictModes no\nUsePAM no\n")
    public = (folder / "host_key.pub").read_text()
    names = [f"{name},[{name}]:{PORTS[1]}" for name in site.network.nodes]
    site.write(".ssh/known_hosts", "".join(f"{name} {public}" for name in names))
    *_, last = site.network.nodes
    site.write(".ssh/config", f"Host {ALIAS}\n    HostName {last}\n")
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


def _answers(node: Machine, site: Site) -> bool:
    command = site.as_user("ssh", node.name, "echo", "up")
    return node.run(*command, environment=site.environment({}), check=False) == "up\n"
