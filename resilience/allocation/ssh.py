"""Hosts that the user, PBS or LSF names, reached by ``ssh`` with the user's own configuration, or by ``blaunch``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.host_files import Host
from laggard.resilience.errors import AllocationError

CONNECT_DEADLINE_S = 8
CONFIGURATION_DEADLINE_S = 5.0
AT_ONCE = 16
# Variables that belong to a login session or to a machine, not to the job.
_NOT_PASSED_ON = {
    *("HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "HOSTNAME"),
    *("TERM", "DISPLAY", "XAUTHORITY", "TMPDIR", "MAIL", "_"),
}
_NOT_PASSED_ON_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_")


class Ssh(Transport):
    """Runs a process on a host; keys, jump hosts and what else is not named come from the user's ssh configuration."""

    name = "ssh"

    def __init__(self, hosts: Iterable[Host] = (), configuration_deadline_s: float = CONFIGURATION_DEADLINE_S) -> None:
        self._deadline_s = configuration_deadline_s  # within which ssh says what a host's name is
        self._hosts = {host.name: host for host in hosts}  # users and ports, where the host list names them

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a host."""
        # The host's shell parses this again. Not run in the home folder, where Python would look for modules. The empty
        # line ends what the shell's start-up files may have printed, and says that the shell is through with them.
        remote = f"cd / && echo && exec {shlex.join(argv)}"
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_DEADLINE_S}"]
        return ["ssh", *options, *_login(self._hosts.get(host, Host(host))), host, remote]

    def names_of(self, hosts: Iterable[Host]) -> dict[str, str]:
        """Return the name to look up for each host: ssh's configuration may define hosts under other names."""
        hosts = list(hosts)
        with ThreadPoolExecutor(AT_ONCE, "ssh-configuration") as threads:
            names = threads.map(lambda host: _host_name(host, self._deadline_s), hosts)
            return {host.name: name for host, name in zip(hosts, names, strict=True)}

    def environment(self) -> Mapping[str, str]:
        """Return our environment without what belongs to this login or machine; it is sent through the agent's pipe."""
        return {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_PASSED_ON and not name.startswith(_NOT_PASSED_ON_PREFIXES)
        }


class Blaunch(Ssh):
    """Runs a process on a host of an LSF job by LSF's own remote shell, which needs no login there."""

    name = "blaunch"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a host."""
        return ["blaunch", host, *argv]

    def names_of(self, hosts: Iterable[Host]) -> dict[str, str]:
        """Return the hosts' own names, by which LSF knows them."""
        return {host.name: host.name for host in hosts}


def transport_of_lsf() -> Ssh:
    """Return how the hosts of an LSF job are reached: by LSF's own remote shell where there is one, else by ssh."""
    return Blaunch() if shutil.which(Blaunch.name) else Ssh()


def _login(host: Host) -> list[str]:
    user = [] if host.user is None else ["-l", host.user]
    return user if host.port is None else [*user, "-p", str(host.port)]


def _host_name(host: Host, deadline_s: float) -> str:
    command = ["ssh", "-G", *_login(host), host.name]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s)
    except FileNotFoundError as error:
        raise AllocationError("ssh is not on PATH, but the other hosts are reached with it: install it") from error
    except subprocess.TimeoutExpired as error:
        hangs = f"{shlex.join(command)} does not end within {deadline_s:g} s"
        raise AllocationError(f"{hangs}: look for Match exec in the configuration of ssh") from error
    names = [line.split(maxsplit=1)[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host.name
