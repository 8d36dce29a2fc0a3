"""Ssh: the hosts that the user names, reached by ``ssh`` with the user's own configuration."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Ssh", "ssh_host_names"]

CONNECT_DEADLINE_S = 8
CONFIGURATION_DEADLINE_S = 5.0
AT_ONCE = 16
# Variables that belong to a login session or to a machine, not to the job.
_NOT_PASSED_ON = {
    *("HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "HOSTNAME"),
    *("TERM", "DISPLAY", "XAUTHORITY", "TMPDIR", "MAIL", "_"),
}
_NOT_PASSED_ON_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_")


class Ssh:
    """Runs a process on a host; keys, user names and jump hosts come from the user's ssh configuration."""

    name = "ssh"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a host."""
        # The host's shell parses this again. Not run in the home folder, where Python would look for modules.
        remote = f"cd / && exec {shlex.join(argv)}"
        return ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_DEADLINE_S}", host, remote]

    def environment(self) -> Mapping[str, str]:
        """Return our environment without what belongs to this login or machine; it is sent through the agent's pipe."""
        return {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_PASSED_ON and not name.startswith(_NOT_PASSED_ON_PREFIXES)
        }

    def is_ending(self) -> bool:
        """Return False: only the user ends the job."""
        return False

    def word_on(self, host: str) -> str:
        """Return nothing: nobody manages the hosts."""
        del host
        return ""


def ssh_host_names(hosts: Iterable[str]) -> dict[str, str]:
    """Return the name to look up for each host: ssh's configuration may define hosts under other names."""
    hosts = list(hosts)
    with ThreadPoolExecutor(AT_ONCE, "ssh-configuration") as threads:
        return dict(zip(hosts, threads.map(_host_name, hosts), strict=True))


def _host_name(host: str) -> str:
    asked = subprocess.run(["ssh", "-G", host], capture_output=True, text=True, timeout=CONFIGURATION_DEADLINE_S)
    names = [line.split(maxsplit=1)[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host
