"""The addresses at which nodes reach each other."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence

import psutil

from laggard.kvstore.client.connection import is_loopback
from laggard.resilience.allocation.base import loopback_network
from laggard.resilience.errors import NodeAddressError
from laggard.system.ports import family_of

_ANY_PORT = 9  # nothing is sent there


def resolve_addresses(names: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the nodes, the first of which is this machine: IPv4 if all have one, else IPv6."""
    primary, *others = names
    found = {host: _addresses_of(host, names[host]) for host in others}
    addresses = common_addresses(found)
    return {primary: _own_address(addresses.values()), **addresses}


def common_addresses(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return an address of each node, all of one family, of which IPv4 comes first. Pure."""
    lacking: list[str] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        first = {host: next((each for each in of if family_of(each) == family), "") for host, of in found.items()}
        if all(first.values()):
            return first
        lacking += [host for host, address in first.items() if not address][:1]
    without_4, without_6 = lacking
    raise NodeAddressError(f"has no IPv6 address and {without_4} no IPv4 address: all need one of a kind", without_6)


def is_this_machine(name: str) -> bool:
    """Return whether a name or an address is one of this machine's."""
    try:
        found = _resolved(name)
    except OSError:
        return name == socket.gethostname()
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    return any(address in own or is_loopback(address) for address in found)


def _addresses_of(host: str, name: str) -> list[str]:
    try:
        found = _resolved(name)
    except OSError as error:
        raise NodeAddressError(f"has no address ({name}: {error.strerror}): check its name", host) from error
    if not (outside := [address for address in found if not is_loopback(address)]):
        raise NodeAddressError(f"has the loopback address {found[0]}: check its name in /etc/hosts", host)
    return outside


def _resolved(name: str) -> list[str]:
    return [str(place[0]) for *_, place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


def address_of(name: str) -> str:
    """Return the address of a name or an address: IPv4 if it has one, else IPv6; raises OSError if it has none."""
    return common_addresses({name: _resolved(name)})[name]


def address_of_first(name: str) -> str:
    """Return the address by which the other nodes know the first one, this machine, given its name or address."""
    if not is_this_machine(name):
        raise NodeAddressError(
            "is the first node's address, but not one of this machine's, although it has the first index", name
        )
    return name if is_loopback(name) else common_addresses({name: _addresses_of(name, name)})[name]


def _own_address(others: Iterable[str]) -> str:
    """Return the address at which the others reach us, which our own name may not give: it is often 127.0.1.1."""
    other = next(iter(others), None)
    # Without others nothing needs to be reachable from outside.
    return f"{loopback_network()}.1" if other is None else own_address(other)


def own_address(other: str) -> str:
    """Return the address of this machine from which it calls another one."""
    with socket.socket(family_of(other), socket.SOCK_DGRAM) as probe:
        probe.connect((other, _ANY_PORT))
        return str(probe.getsockname()[0])
