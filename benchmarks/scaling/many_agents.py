"""Many agents in one process, for the step of a large job: what they cost the controller is real, but they do no work.

Called like ``srun``: with the hosts, separated by commas. Each host has an agent that dials, sends its
handshake and heartbeats, and answers; all in one thread, but with the agents' own code for channels, TLS and dialling.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from functools import partial

from laggard.resilience.agent.dialling import Dialler, JoinToken, read_join_token
from laggard.resilience.agent.loop import Loop
from laggard.resilience.wire import ALIVE, KEEP_ALIVE, decode, encode
from laggard.resilience.wire.handshake import Handshake
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from laggard.resilience.wire.node import Ping, Pong, SetUp
from laggard.resilience.wire.tasks import EndLeftovers, LeftoversEnded

__all__ = ["main"]

LAST_WORDS_S = 0.5


class _Agent:
    """One of them."""

    def __init__(self, loop: Loop, token: JoinToken, ended: threading.Semaphore) -> None:
        self._loop = loop
        self._ended = ended
        self._has_ended = False
        self._unread = b""
        self._timing = HeartbeatTiming(token.n_nodes)
        self._channel = Dialler(loop, token, os.dup(sys.stdin.fileno())).channel
        self._channel.write(encode(Handshake(1, (), "node", 1 << 30)))
        self._channel.read(self._take, self._end)
        loop.call(self._beat)

    def _beat(self) -> None:
        if not self._has_ended:
            self._loop.after(self._timing.interval_s, self._beat)
            with contextlib.suppress(BrokenPipeError):  # it is about to hear of its end
                self._channel.write(ALIVE)

    def _take(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line != KEEP_ALIVE.rstrip():
                match decode(line, SetUp, Ping, EndLeftovers):
                    case SetUp():
                        pass
                    case Ping():
                        self._channel.write(encode(Pong(time.time())))
                    case EndLeftovers():
                        self._channel.write(encode(LeftoversEnded(0)))

    def _end(self) -> None:
        self._has_ended = True
        self._channel.close()
        self._ended.release()


def main(hosts: list[str]) -> None:
    """Be the agents of these hosts until all have ended."""
    together = read_join_token(sys.stdin.fileno())
    loop, ended = Loop("agents"), threading.Semaphore(0)
    for host in hosts:
        _Agent(loop, together.of_node(host), ended)
    for _ in hosts:
        ended.acquire()
    loop.call(partial(time.sleep, LAST_WORDS_S))  # until the last words have left
    loop.close()


if __name__ == "__main__":
    main(sys.argv[1].split(","))
