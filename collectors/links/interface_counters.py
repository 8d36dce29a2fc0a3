"""Which network interface is probed, and what the kernel counts of it, and of a socket.

Reading that needs no privileges. The interface that a user asks for is found by the rules of NCCL_SOCKET_IFNAME.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from laggard.collectors.errors import NoInterfaceError
from laggard.collectors.links.symptoms import LinkSymptoms

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


CLASSES = Path("/sys/class")
# Unlike ``/sys/class/net``, which a container may have from its host, this shows the interfaces of the process itself.
INTERFACES = Path("/proc/self/net/dev")
LOOPBACK = "lo"

_STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "tx_carrier_errors", "collisions")
_OF_PORTS = (
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)
# linux/tcp.h: tcpi_total_retrans of struct tcp_info comes after 8 single bytes and 23 words.
_TOTAL_RETRANSMISSIONS = struct.Struct("=8x92xI")
_UNKNOWN_SPEED = 0


def interface_of(address: str) -> str:
    """Return the network interface that has an address of this machine; empty for loopback, which is no NIC."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return "" if name == LOOPBACK else name
    return ""


def carried_bytes(interface: str, direction: Literal["rx", "tx"], table: Path = INTERFACES) -> int:
    """Return how many bytes an interface has received or sent so far; 0 if there is none."""
    if not interface:
        return 0
    for line in table.read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[0 if direction == "rx" else 8])
    return 0


def retransmissions_of(connection: socket.socket) -> int:
    """Return how many segments TCP has sent again over a connection so far."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMISSIONS.size)
    return int(_TOTAL_RETRANSMISSIONS.unpack(info)[0]) if len(info) == _TOTAL_RETRANSMISSIONS.size else 0


def read_counters(interface: str, classes: Path = CLASSES) -> dict[str, int]:
    """Return the counters that there are of an interface, and of the InfiniBand or RoCE ports behind it."""
    folder = classes / "net" / interface
    if not interface or not folder.exists():
        return {}
    files = {name: folder / "statistics" / name for name in _STATISTICS}
    found = {name: value for name, file in files.items() if (value := _number(file)) is not None}
    for lower in (folder, *folder.glob("lower_*")):  # those of a bond, or below a VLAN
        if (value := _number(lower / "carrier_down_count")) is not None:
            found["carrier_down_count"] = max(value, found.get("carrier_down_count", 0))
    for port in _ports(interface, classes):
        for name in _OF_PORTS:
            if (value := _number(port / "counters" / name)) is not None:
                found[name] = found.get(name, 0) + value
    return found


class CountersOfRound:
    """Reads the counters of an interface from round to round."""

    def __init__(self, interface: str, classes: Path = CLASSES) -> None:
        self._interface = interface
        self._classes = classes  # where the kernel shows them
        self._before = read_counters(interface, classes)

    def symptoms(self, retransmissions: int) -> LinkSymptoms:
        """Return what has risen since the last call; ``retransmissions`` are those of the round's own sockets."""
        now = read_counters(self._interface, self._classes)
        risen = _rises(self._before, now)
        self._before = now
        if retransmissions:
            risen["tcp_retransmissions"] = retransmissions
        speed_mbps, duplex = _settings(self._interface, self._classes)
        return LinkSymptoms(self._interface, speed_mbps, duplex, risen)


def _rises(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the counters that have risen; one that has fallen was reset, and is not known."""
    return {name: value - before[name] for name, value in now.items() if value > before.get(name, value)}


def _settings(interface: str, classes: Path) -> tuple[int, str]:
    """Return the speed in Mb/s, 0 if not known, and the duplex mode."""
    folder = classes / "net" / interface
    if not interface:
        return _UNKNOWN_SPEED, ""
    rates = [_rate_mbps(port) for port in _ports(interface, classes)]
    speed_mbps = max(_number(folder / "speed") or _UNKNOWN_SPEED, _UNKNOWN_SPEED)  # -1: the link is down
    return min([rate for rate in rates if rate], default=speed_mbps), _text(folder / "duplex")


def _ports(interface: str, classes: Path) -> list[Path]:
    """Return the InfiniBand or RoCE ports of the adapter that an interface belongs to."""
    adapters = classes / "net" / interface / "device" / "infiniband"
    return sorted(adapters.glob("*/ports/*")) if adapters.exists() else []


def _rate_mbps(port: Path) -> int:
    """Return a port's rate, which reads ``100 Gb/sec (4X EDR)``."""
    number, _, _ = _text(port / "rate").partition(" ")
    with contextlib.suppress(ValueError):
        return round(1000 * float(number))
    return _UNKNOWN_SPEED


def _number(file: Path) -> int | None:
    with contextlib.suppress(ValueError):  # 'N/A (no PMA)', for instance
        return int(_text(file))
    return None


def _text(file: Path) -> str:
    """Return a file's text; empty if it cannot be read, as the speed of a link that is down."""
    with contextlib.suppress(OSError):
        return file.read_text(encoding="ascii").strip()
    return ""
