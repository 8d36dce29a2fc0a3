"""Ports of this machine: free ones, and taken ones."""

from __future__ import annotations

import socket

__all__ = ["claim_port", "free_port", "listens", "port_is_taken"]

_TIMEOUT_S = 1.0
_claims: dict[int, tuple[socket.socket, socket.socket]] = {}


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


def claim_port(port: int, address: str) -> bool:
    """Have a port kept for this job until it ends; False where somebody listens there, or another job has claimed it.

    Whoever is to listen there may take its time to start. The claim is a socket's name, which the kernel gives to one
    process at a time and takes back from a dead one; beside it the port itself is bound, so that the kernel gives it to
    nobody who asks for any free one, and may still be listened on.
    """
    if port in _claims:
        return True
    if port_is_taken(port, address):
        return False
    claim, held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one of the two may listen
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
    """Whether somebody listens on a port at an address."""
    with socket.socket() as probe:
        probe.settimeout(_TIMEOUT_S)
        return probe.connect_ex((address, port)) == 0
