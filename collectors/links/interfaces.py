"""Which network is probed: the interface of this machine that a user asks for, by the rules of NCCL_SOCKET_IFNAME."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from laggard.collectors.errors import NoInterfaceError

_EXCEPT, _EXACTLY = "^", "="
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def address_on(wanted: str) -> str:
    """Return the address of the first interface of this machine that is wanted: IPv4 if it has one, else IPv6."""
    found = {name: own for name, addresses in psutil.net_if_addrs().items() if (own := _address_in(addresses))}
    return found[chosen_interface(wanted, found)]


def _address_in(addresses: Sequence[Any]) -> str:
    """Return the one of an interface at which other machines reach it; empty if there is none."""
    usable = [each for each in addresses if each.family in _FAMILIES and "%" not in each.address]
    return min(usable, key=lambda each: _FAMILIES.index(each.family)).address if usable else ""


def chosen_interface(wanted: str, there: Mapping[str, str]) -> str:
    """Return the first interface that a list of prefixes asks for."""
    is_except = wanted.startswith(_EXCEPT)
    rest = wanted.removeprefix(_EXCEPT)
    is_exact = rest.startswith(_EXACTLY)
    names = [name for name in rest.removeprefix(_EXACTLY).split(",") if name]
    if is_except:
        found = [each for each in there if not any(_fits(each, name, is_exact=is_exact) for name in names)]
    else:
        found = [each for name in names for each in there if _fits(each, name, is_exact=is_exact)]
    if not found:
        raise NoInterfaceError(wanted, _listed(there))
    return found[0]


def _fits(interface: str, name: str, *, is_exact: bool) -> bool:
    return interface == name if is_exact else interface.startswith(name)


def _listed(there: Mapping[str, str]) -> Sequence[str]:
    return [f"{name} ({address})" for name, address in there.items()]
