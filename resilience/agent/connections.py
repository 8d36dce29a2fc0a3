"""What processes of this node are connected to, and which file systems of the network they use. Read from ``/proc``."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import psutil

from laggard.resilience.agent.mounts import mount_of, network_mounts
from laggard.resilience.reading.targets import Target

# The agent does nothing else meanwhile, and what many processes of a rank use, its first ones use as well.
MAX_FILES = 4000
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_ESTABLISHED, _LISTENS = "01", "0A"
_CALLERS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def descendants(root: int) -> list[int]:
    """Return a process with all below it; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        return [root, *(child.pid for child in process.children(recursive=True))]
    return []


def used_by(pids: Iterable[int]) -> list[Target]:
    """Return what these processes have connected to and do not serve themselves, and the mounts that they use."""
    mounts = network_mounts()
    inodes: set[str] = set()
    used: set[str] = set()
    for path in islice((path for pid in pids for path in _files(pid)), MAX_FILES):
        if match := _SOCKET.fullmatch(path):
            inodes.add(match[1])
        elif mounts and (mount := mount_of(path, mounts)):
            used.add(mount)
    return [*_connections(inodes), *(Target("mount", of=mount) for mount in sorted(used))]


def _files(pid: int) -> Iterator[str]:
    """Yield the names of a process's folder and open files; none of one that has ended, or that is another user's."""
    with contextlib.suppress(OSError):
        yield str(Path(f"/proc/{pid}/cwd").readlink())
        for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of them, as below
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115


def _connections(inodes: set[str]) -> list[Target]:
    found: set[tuple[str, int]] = set()
    served: set[int] = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] not in inodes:
                    continue
                if fields[3] == _LISTENS:
                    served.add(_address(fields[1])[1])
                elif fields[3] == _ESTABLISHED:
                    found.add(_address(fields[2]))
    # A port that the kernel has chosen belongs to a caller, or to a rank: it goes with its process. The listener that
    # would show it may be closed by now, and a rank may be at an address of its node that we do not know.
    first, last = map(int, _CALLERS_PORTS.read_text().split())
    services = [(host, port) for host, port in sorted(found) if not first <= port <= last]
    return [Target("port", host, port) for host, port in services if not (_is_loopback(host) and port in served)]


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _address(text: str) -> tuple[str, int]:
    """Return the address that the kernel writes as numbers of its own byte order."""
    host, port = text.split(":")
    words = b"".join(int(host[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(host), 8))
    address = ipaddress.ip_address(socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)
