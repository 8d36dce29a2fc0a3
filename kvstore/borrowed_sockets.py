"""The sockets on which another process of the same user listens, borrowed from it to add a second queue at each.

The kernel lets a process have a socket of another one that it could debug; every ancestor may do that, as a rule.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from laggard.kvstore.strangers import SecondQueue

__all__ = ["borrowed_sockets", "is_listening", "second_queues"]

_PIDFD_GETFD = 438  # on all processors that we know; the C library has no function for it
_SOCKET = "socket:"
# What happens where a descriptor has been closed since we saw it.
_CLOSED = (errno.ENOENT, errno.EBADF)


@contextlib.contextmanager
def borrowed_sockets(pid: int) -> Iterator[list[socket.socket]]:
    """Yield a process's sockets for TCP over IPv4; what is changed in them is changed for it, too.

    A timeout is such a change; closing them is none.

    Raises
    ------
    OSError
        If the process has ended, or the kernel does not let us.
    """
    with contextlib.ExitStack() as stack:
        process = os.pidfd_open(pid)
        stack.callback(os.close, process)
        found = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not str(link.readlink()).startswith(_SOCKET):
                    continue
                borrowed = stack.enter_context(socket.socket(fileno=_borrow(process, int(link.name))))
            except OSError as error:
                if error.errno not in _CLOSED:
                    raise
                continue
            if borrowed.family == socket.AF_INET and borrowed.type == socket.SOCK_STREAM:
                found.append(borrowed)
        yield found


def is_listening(each: socket.socket) -> bool:
    """Return whether a socket takes connections."""
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def second_queues(pid: int, known: Collection[str]) -> list[SecondQueue]:
    """Return a second queue at each port on which a process listens over IPv4.

    Raises
    ------
    OSError
        If the process has ended, or the kernel does not let us; then its ports are as they were.
    """
    with borrowed_sockets(pid) as borrowed, contextlib.ExitStack() as made:
        ports = {each.getsockname(): each for each in borrowed if is_listening(each)}
        queues = []
        for first in ports.values():
            queues.append(SecondQueue(first, known))
            made.callback(queues[-1].close)
        made.pop_all()
    return queues


def _borrow(process: int, descriptor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    borrowed: int = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    if borrowed < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return borrowed
