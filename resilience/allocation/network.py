"""The addresses at which nodes reach each other."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

import psutil

from laggard.kvstore.client.connection import is_loopback
from laggard.resilience.allocation.base import loopback_network
from laggard.resilience.errors import NodeAddressError

_ANY_PORT = 9  # nothing is sent there


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


def address_of_first(name: str) -> str:
    """Return the address by which the other nodes know the first one, this machine, given its name or address."""
    if not is_this_machine(name):
        raise NodeAddressError("is the first node's, but it is none of this machine, which has the first index", name)
    return name if is_loopback(name) else _address_of(name, name)


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
