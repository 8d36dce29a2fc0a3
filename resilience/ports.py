"""Ports of this machine: free ones, and taken ones."""

from __future__ import annotations

import socket

__all__ = ["free_port", "listens", "port_is_taken"]

_TIMEOUT_S = 1.0


def free_port(address: str) -> int:
    """Return a port that nobody listens on at an address of this machine."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def port_is_taken(port: int, address: str = "") -> bool:
    """Whether a process of this machine listens on a port, at an address or (by default) at any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def listens(address: str, port: int) -> bool:
    """Whether somebody listens on a port at an address."""
    with socket.socket() as probe:
        probe.settimeout(_TIMEOUT_S)
        return probe.connect_ex((address, port)) == 0
