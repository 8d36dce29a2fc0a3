"""The one place that hands out ports: of those that the user's firewall opens, or any that are free.

A program that we start listens later than its port is chosen. So such a port is *kept* meanwhile: its number is the
name of an abstract socket, which the kernel gives to one process at a time and takes back when that one dies, and no
other process of any job's takes the port. It is bound as well, so that the kernel does not hand it out as a free one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.errors import LaggardError

VARIABLE = "LAGGARD_PORT_RANGE"
FIRST_PORT_OF_USERS, LAST_PORT = 1024, 65535
_TEXT = re.compile(r"(\d{1,5})-(\d{1,5})")
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Above these, clusters give ports to services.
_FOR_LATER = range(20_000, 30_000)
_TRIES = 100
_CONNECT_TIMEOUT_S = 1.0
_kept: dict[int, tuple[socket.socket, ...]] = {}


class PortRangeError(LaggardError, ValueError):
    """Text that names no range of ports."""

    text: str
    problem: str
    template = "--port-range={text} {problem}"


class NoPortError(LaggardError, OSError):
    """All ports of the range are taken."""

    ports: str
    address: str
    template = "no port of --port-range={ports} is free at {address}: name more ports"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from a first to a last one."""

    first: int
    last: int

    @classmethod
    def of_text(cls, text: str) -> PortRange:
        """Read ``60900-60999``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None or not int(match[1]) <= int(match[2]) <= LAST_PORT:
            raise PortRangeError(text, "is not a range of ports: name the first and the last, as in 60900-60999")
        if int(match[1]) < FIRST_PORT_OF_USERS:
            raise PortRangeError(text, "needs root, as ports below 1024 do: name others")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def ports(self) -> range:
        """All of them."""
        return range(self.first, self.last + 1)

    def share(self, number: int, n_shares: int) -> PortRange:
        """Return one of some equal shares, of which the first is number 0, for nodes that are one machine."""
        size = max(1, len(self.ports) // n_shares)
        first = min(self.first + number * size, self.last)
        return PortRange(first, min(first + size - 1, self.last))


def port_range(environ: Mapping[str, str] = os.environ) -> PortRange | None:
    """Return the range at whose ports this process is to listen; None: at any."""
    text = environ.get(VARIABLE)
    return PortRange.of_text(text) if text else None


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of a numeric address; of none, the one of this machine's every IPv4 address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def host_and_port(address: str, port: int) -> str:
    """Return an address with a port as one text; one of IPv6 is in brackets. Pure."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listen(address: str, backlog: int, port: int = 0) -> socket.socket:
    """Listen at an address of this machine: at this port, or else at one of the range."""
    ports = None if port else port_range()
    if ports is None:
        return socket.create_server((address, port), family=family_of(address), backlog=backlog)
    for port in _drawn(ports):
        if not _is_kept(port):
            try:
                return socket.create_server((address, port), family=family_of(address), backlog=backlog)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
    raise NoPortError(str(ports), address)


def free_port(address: str) -> int:
    """Return a port that is free at an address of this machine; one of the range is kept."""
    ports = port_range()
    if ports is None:
        with socket.socket(family_of(address)) as probe:
            probe.bind((address, 0))
            return int(probe.getsockname()[1])
    for port in _drawn(ports):
        if port not in _kept and not port_is_taken(port) and keep(port, address):
            return port
    raise NoPortError(str(ports), address or "this machine")


def free_ports(n_needed: int) -> list[int]:
    """Return all ports of the range that are free at every address; none where there is no range."""
    if (ports := port_range()) is None:
        return []
    free = [port for port in _drawn(ports) if not _is_kept(port) and not port_is_taken(port)]
    if len(free) < n_needed:
        raise NoPortError(str(ports), f"this machine, where Ray needs {n_needed} or more")
    return free


def port_for_later(given_out: Path = _GIVEN_OUT, draw: Callable[[Sequence[int]], int] = random.choice) -> int:
    """Return a port that is free at every address of this machine, and stays so for a program that is slow to listen.

    The kernel gives it to nobody who only connects, and it is drawn by lot, so that other jobs draw other ones. One of
    the range is kept, for :func:`give_back`.
    """
    if port_range() is not None:
        return free_port("")
    ports = ports_for_later(given_out.read_text())
    for _ in range(_TRIES if ports else 0):
        port = draw(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    return free_port("")


def ports_for_later(given_out: str) -> range:
    """Return the ports to choose from, given the first and last one that the kernel gives to who connects. Pure."""
    first, last = map(int, given_out.split())
    below, above = range(_FOR_LATER.start, min(first, _FOR_LATER.stop)), range(last + 1, _FOR_LATER.stop)
    return max(below, above, key=len)


def port_is_taken(port: int, address: str = "") -> bool:
    """Return whether a process of this machine listens on a port, at an address or (by default) at any."""
    with socket.socket(family_of(address)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise
            return True
    return False


def port_needs_root(port: int) -> bool:
    """Return whether this user may not listen on a port."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except PermissionError:
            return True
        except OSError:  # it is taken
            return False
    return False


def keep(port: int, address: str) -> bool:
    """Keep a port for a program of this job until this process ends; return False if it is taken, or another's."""
    if port in _kept:
        return True
    if port_is_taken(port, address):
        return False
    with contextlib.ExitStack() as undone, contextlib.suppress(OSError):
        name = undone.enter_context(_name_of(port))
        held = undone.enter_context(socket.socket(family_of(address)))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server sets it too, so both may bind
        held.bind((address, port))
        _kept[port] = name, held
        undone.pop_all()
    return port in _kept


def give_back(port: int) -> None:
    """Let others have a port; nothing happens if it is not kept."""
    for each in _kept.pop(port, ()):
        each.close()


def listens(address: str, port: int) -> bool:
    """Return whether somebody listens on a port at an address."""
    with socket.socket(family_of(address)) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        return probe.connect_ex((address, port)) == 0


def _drawn(ports: PortRange) -> list[int]:
    """Return the ports in an order drawn by lot, so that two jobs on a machine seldom want the same one."""
    return random.sample(ports.ports, len(ports.ports))


def _name_of(port: int) -> socket.socket:
    """Return the socket whose name says that a port is kept; raises OSError where another process has it."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0laggard-port-{port}")
    except OSError:
        name.close()
        raise
    return name


def _is_kept(port: int) -> bool:
    try:
        _name_of(port).close()
    except OSError:
        return True
    return False
