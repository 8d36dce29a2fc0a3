"""Keeps the state server running: if it dies or hangs, it is started again from its log, on the same port."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import redis

from laggard.kvstore.errors import (
    MEMORY_ADVICE,
    KVStoreError,
    PortTakenError,
    ServerError,
    ServerLostError,
    ServerStartError,
    StateFullError,
)
from laggard.kvstore.server.process import StateServer
from laggard.resilience.agent.awake import AwakeClock
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.system.memory import oom_kills

_log = logging.getLogger(__name__)

LOAD_DEADLINE_S = 60.0
POLL_S = 0.05
# A server that says nothing for this long, not even that it is busy or loading, hangs: it is stopped, or waits for a
# disk that is gone. Time in which we were not scheduled ourselves does not count.
HANG_TIMEOUT_S = 6.0
PING_INTERVAL_S = 1.0
# Of State, beside the log. A job that ends sooner has less to lose.
FIRST_BACKUP_S = 600.0
BACKUP_INTERVAL_S = 3600.0
# Two deaths for want of memory within this time are not an accident either: the third would come as well.
OOM_WINDOW_S = 3600.0
# The kernel counts such a death some moments before we see it.
OOM_LOOKS = 5
# So many deaths or failed starts within a minute are not an accident.
MAX_STARTS_PER_MINUTE = 60
# Starts that only fail end here; one that gets on with its log has not failed.
FAILED_STARTS_LIMIT_S = 300.0


class StateSupervisor(StateKeeper):
    """A state server that is restarted when it dies or hangs.

    Clients only see a pause: they connect again, and everything that was committed is there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        job: str,
        host: str,
        port: int | None = None,
        on_loading: Callable[[str], None] = lambda _: None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        ping_interval_s: float = PING_INTERVAL_S,
        first_backup_s: float = FIRST_BACKUP_S,
        kills: Callable[[], int] = oom_kills,
    ) -> None:
        self._server = StateServer.start(
            directory, job=job, host=host, port=port, deadline_s=LOAD_DEADLINE_S, on_loading=on_loading
        )
        super().__init__(self._server.endpoint)
        self._hang_timeout_s = hang_timeout_s
        self._ping_interval_s = ping_interval_s
        self._kills = kills  # counts what the kernel has killed for want of memory
        self._starts_s: deque[float] = deque(maxlen=MAX_STARTS_PER_MINUTE)
        self._oom_kills = deque([kills()], maxlen=OOM_LOOKS)
        self._oom_death_s = -math.inf
        self._backup_at_s = time.monotonic() + first_backup_s
        self._awake_clock = AwakeClock()
        self._awake_clock.start()
        self._answered_s = 0.0  # by that clock
        self._watcher = threading.Thread(target=self._watch_for_hang, name="state-watch", daemon=True)
        self._watcher.start()
        self._thread = threading.Thread(target=self._keep, name="state-keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id of the server that runs now, or ran last."""
        return self._server.pid

    def stop(self) -> None:
        """End the server and do not restart it."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
            server = self._server
        server.stop()
        self._awake_clock.stop()
        self._thread.join(LOAD_DEADLINE_S)
        self._watcher.join(LOAD_DEADLINE_S)

    def _watch_for_hang(self) -> None:
        while not self._is_stopping_after(self._ping_interval_s):
            self._oom_kills.append(self._kills())
            server = self._server
            if server.answers(self._ping_interval_s):
                self._answered_s = self._awake_clock.now_s()
                self._take_backup(server)
            silent_s = self._awake_clock.now_s() - self._answered_s
            if silent_s > self._hang_timeout_s and server is self._server and server.alive():
                self._say(f"the server did not answer for {silent_s:.0f} s: it is killed")
                server.kill()
                self._answered_s = self._awake_clock.now_s()

    def _take_backup(self, server: StateServer) -> None:
        if time.monotonic() < self._backup_at_s:
            return
        self._backup_at_s = time.monotonic() + BACKUP_INTERVAL_S
        try:
            server.backup()
        except (redis.RedisError, OSError) as error:  # the next one may do
            _log.warning("no backup of State: %s", error)

    def _keep(self) -> None:
        while (exit_code := self._server.wait_exit(None)) is not None and not self._stopping:
            try:
                self._restart(exit_code)
            except Exception as error:  # noqa: BLE001 - the controller ends the job with it
                self._fail(error if isinstance(error, KVStoreError) else ServerLostError(str(error)))
                return

    def _restart(self, exit_code: int) -> None:
        died = self._server
        if full := died.full():
            raise full
        began_s = time.monotonic()
        if exit_code == -signal.SIGKILL:
            self._check_memory(str(died.directory))
        server = self._start_again(died)
        with self.changed:
            self._server = server
            self._answered_s = self._awake_clock.now_s()
            took_s = time.monotonic() - began_s
            self.messages.append(
                f"the server died ({exit_code}) and was restarted with all of its log in {took_s:.1f} s"
            )
            self.changed.notify_all()
            stopping = self._stopping
        if stopping:
            server.stop()

    def _check_memory(self, directory: str) -> None:
        """Note that a server was killed, perhaps for want of memory; raise an error if that comes again."""
        if self._kills() <= self._oom_kills[0]:
            return
        now_s = time.monotonic()
        if now_s - self._oom_death_s < OOM_WINDOW_S:
            raise StateFullError(directory, "the kernel killed the server again because memory ran out", MEMORY_ADVICE)
        self._oom_death_s = now_s
        self._oom_kills.clear()
        self._oom_kills.append(self._kills())
        self._say("the kernel killed the server because memory ran out; it is restarted once")

    def _say_loading(self, message: str) -> None:
        if self._stopping:  # nobody needs it any more
            raise ServerLostError("the job ended while its state server was loading its log")
        self._say(message)

    def _start_again(self, died: StateServer) -> StateServer:
        failed: ServerError | None = None
        give_up_at_s = time.monotonic() + FAILED_STARTS_LIMIT_S
        while not self._too_often(time.monotonic()):
            try:
                return died.start_again(LOAD_DEADLINE_S, self._say_loading)
            except (ServerStartError, PortTakenError) as error:  # it may have been killed while it was starting
                failed = error
                self._check_memory(str(died.directory))
                if time.monotonic() > give_up_at_s:
                    raise
            with self.changed:
                if self.changed.wait_for(lambda: self._stopping, POLL_S):
                    break
        raise failed or ServerLostError(f"the state server ended {MAX_STARTS_PER_MINUTE} times within a minute")

    def _too_often(self, now_s: float) -> bool:
        starts_s = self._starts_s
        starts_s.append(now_s)
        return len(starts_s) == MAX_STARTS_PER_MINUTE and now_s - starts_s[0] < 60
