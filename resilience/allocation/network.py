"""The addresses at which nodes reach each other, and the ports of this machine."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from laggard.kvstore.client.connection import is_loopback
from laggard.resilience.allocation.base import loopback_network
from laggard.resilience.errors import NodeAddressError

_CONNECT_TIMEOUT_S = 1.0
_ANY_PORT = 9  # nothing is sent there
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Above these, clusters give ports to services.
_FOR_LATER = range(20_000, 30_000)
_TRIES = 100
_claims: dict[int, tuple[socket.socket, socket.socket]] = {}


def resolve_addresses(names: Mapping[str, str]) -> dict[str, str]:
    """Return the IPv4 addresses of the nodes, the first of which is this machine."""
    primary, *others = names
    addresses = {host: _address_of(host, name) for host, name in names.items() if host != primary}
    return {primary: _own_address(addresses.values()), **{host: addresses[host] for host in others}}


def is_this_machine(name: str) -> bool:
    """Return whether a name or an address is one of this machine's."""
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return name == socket.gethostname()
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    return address in own or is_loopback(address)


def _address_of(host: str, name: str) -> str:
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise NodeAddressError(f"has no IPv4 address ({name}: {error.strerror}): check its name", host) from error
    if is_loopback(address):
        raise NodeAddressError(f"has the loopback address {address}: check its name in /etc/hosts", host)
    return address


def _own_address(others: Iterable[str]) -> str:
    """Return the address at which the others reach us, which our own name may not give: it is often 127.0.1.1."""
    other = next(iter(others), None)
    # Without others nothing needs to be reachable from outside.
    return f"{loopback_network()}.1" if other is None else own_address(other)


def own_address(other: str) -> str:
    """Return the address of this machine from which it calls another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, _ANY_PORT))
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    """Return a free port at an address of this machine."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def port_for_later(given_out: Path = _GIVEN_OUT, draw: Callable[[range], int] = secrets.choice) -> int:
    """Return a port that is free at every address of this machine, and stays so for a program that is slow to listen.

    The kernel gives it to nobody who only connects, and it is drawn by lot, so that other jobs draw other ones.
    """
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
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
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


def claim_port(port: int, address: str) -> bool:
    """Reserve a port for this job until it ends; return False if it is taken or another job has reserved it."""
    # The process that will listen there may start later. The claim is the name of an abstract socket, which the kernel
    # gives to one process at a time and takes back when that one dies. The port itself is bound as well, with
    # `SO_REUSEADDR`, so that the kernel does not hand it out as a free one but it can still be listened on.
    if port in _claims:
        return True
    if port_is_taken(port, address):
        return False
    claim, held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server sets it too, so both may bind
    try:
        claim.bind(f"\0laggard-port-{port}")
        held.bind((address, port))
    except OSError:
        claim.close()
        held.close()
        return False
    _claims[port] = claim, held
    return True


def listens(address: str, port: int) -> bool:
    """Return whether somebody listens on a port at an address."""
    with socket.socket() as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        return probe.connect_ex((address, port)) == 0
