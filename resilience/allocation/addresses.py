"""Addresses of nodes as the others reach them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

import psutil

from kvstore.endpoint import is_loopback
from resilience.allocation.base import AllocationError, loopback_network

__all__ = ["is_this_machine", "reachable"]

_ANY_PORT = 9  # nothing is sent there


def reachable(names: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes' IPv4 addresses, the first of which is this machine.

    Parameters
    ----------
    names
        Name or address to look up, by host name.

    Raises
    ------
    AllocationError
        If a name has no IPv4 address.
    """
    primary, *others = names
    addresses = {host: _address_of(host, name) for host, name in names.items() if host != primary}
    return {primary: _own_address(addresses.values()), **{host: addresses[host] for host in others}}


def is_this_machine(name: str) -> bool:
    """Whether a name or an address is one of this machine's own."""
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
        raise AllocationError(f"{host} has no IPv4 address ({name}: {error.strerror}): check its name") from error
    if is_loopback(address):
        raise AllocationError(
            f"{host} has the address {address}, which is this machine's: check its name in /etc/hosts"
        )
    return address


def _own_address(others: Iterable[str]) -> str:
    """Return the address at which the others reach us; many machines call themselves 127.0.1.1."""
    for other in others:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, _ANY_PORT))
            return str(probe.getsockname()[0])
    return f"{loopback_network()}.1"  # there is nobody else, so nothing need listen to anybody else
