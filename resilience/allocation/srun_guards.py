"""Second queues at the ports of ``srun``, which takes every connection and reads what comes, however slowly.

Only the nodes where its tasks run, and Slurm's controllers, have to reach it. Nobody takes connections from the second
queue: those whom the kernel has put there wait, and it drops all others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Collection

import psutil

from laggard.kvstore.borrowed_sockets import borrowed_sockets, is_listening, second_queues
from laggard.kvstore.strangers import SecondQueue

__all__ = ["SrunGuards"]

_log = logging.getLogger("laggard.resilience.allocation")

LOOK_MS = 200


class SrunGuards:
    """Guards the ports of each ``srun`` that is handed over, until that one ends.

    Parameters
    ----------
    controllers
        Returns those of Slurm's controllers; ``None`` if they cannot be learned: then nothing is guarded.
    """

    def __init__(self, controllers: Callable[[], Collection[str] | None]) -> None:
        self._nodes: set[str] = set()
        self._controllers = controllers
        self._queues: list[SecondQueue] = []
        self._pids: set[int] = set()
        self._changing = threading.Lock()

    def guard(self, pid: int) -> None:
        """Guard the ports of a process, a child of ours, as soon as one of its tasks has reached it; do not wait."""
        with self._changing:
            if pid not in self._pids:
                self._pids.add(pid)
                threading.Thread(target=self._guard, args=(pid,), name="srun-guard", daemon=True).start()

    def admit(self, *addresses: str) -> None:
        """Let nodes call from these addresses, too."""
        with self._changing:
            self._nodes.update(addresses)
            for queue in self._queues:
                queue.admit(*addresses)

    def _guard(self, pid: int) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._pids.discard, pid)
            if (controllers := self._controllers()) is None:
                _log.debug("strangers reach process %d: who else has to is not known", pid)
                return
            try:
                process = os.pidfd_open(pid)
                stack.callback(os.close, process)
                while not self._is_launched(pid):
                    if _has_ended(process, LOOK_MS):
                        return
                queues = self._stand(pid, {*controllers, *_own_addresses()})
            except OSError as error:  # it has ended, or this kernel does not allow it
                _log.debug("strangers reach process %d: %s", pid, error)
                return
            stack.callback(self._withdraw, queues)
            _has_ended(process, None)

    def _is_launched(self, pid: int) -> bool:
        """Return whether a node is connected: then all ports are open, and the addresses are those that nodes use."""
        with borrowed_sockets(pid) as borrowed:
            ports = {each.getsockname()[1] for each in borrowed if is_listening(each)}
            return any(_caller(each) in self._nodes and each.getsockname()[1] in ports for each in borrowed)

    def _stand(self, pid: int, others: Collection[str]) -> list[SecondQueue]:
        with self._changing:
            queues = second_queues(pid, {*self._nodes, *others})
            self._queues += queues
        return queues

    def _withdraw(self, queues: Collection[SecondQueue]) -> None:
        with self._changing:
            for queue in queues:
                queue.close()
                self._queues.remove(queue)


def _has_ended(process: int, timeout_ms: int | None) -> bool:
    """Wait for the end of a process, so long at most."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _caller(each: socket.socket) -> str:
    with contextlib.suppress(OSError):  # it is not connected
        return str(each.getpeername()[0])
    return ""


def _own_addresses() -> set[str]:
    found = {each for addresses in psutil.net_if_addrs().values() for each in addresses}
    return {each.address for each in found if each.family == socket.AF_INET}
