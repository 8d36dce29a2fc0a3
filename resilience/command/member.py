"""``laggard run`` on any node but the first, where something else starts the same command on every node.

It starts an agent, which dials the controller on the first node, and ends with the job's exit code. If the agent ends
before the job does, it starts another one: the controller may have lost sight of it, or come back after a failure of
the first node's.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import IO, cast

from laggard.kvstore.client.connection import is_loopback
from laggard.resilience.agent import JOINS
from laggard.resilience.agent.processes import FORCED_STOP_S, adopt_orphans, end_descendants, reap_orphans
from laggard.resilience.allocation.discovery import LATE_S
from laggard.resilience.allocation.network import address_of
from laggard.resilience.allocation.place import JoinSecret, Place, own_variables
from laggard.resilience.allocation.remote import HANDSHAKE_COMMAND
from laggard.resilience.errors import AllocationError, MessageError
from laggard.resilience.folders import remove_stale_folders, runtime_root
from laggard.resilience.wire import decode, encode
from laggard.resilience.wire.node import JobEnded, TakenIn
from laggard.system.ports import listens
from laggard.system.termination_message import leave

LOOK_S = 0.5
READ_S = 2.0


class Member:
    """One node of a job, from its start to its end. Use it once."""

    def __init__(self, place: Place, secret: JoinSecret, wait_s: float, save_s: float, *, finds_gpus: bool) -> None:
        self._place, self._secret = place, secret
        self._wait_s = wait_s  # how long to wait for a controller
        self._save_s = save_s  # how long tasks may save after SIGTERM
        self._finds_gpus = finds_gpus
        self._until_s = time.monotonic() + wait_s
        self._agent: subprocess.Popen[bytes] | None = None
        self._signum = 0  # of the signal that has told us to end
        self._is_taken_in = False
        self._job_ended: JobEnded | None = None

    def serve(self) -> int:
        """Have agents run here until the job ends, and return its exit code."""
        adopt_orphans()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, self._end)
        for warning in (signal.SIGUSR1, signal.SIGUSR2):  # they concern the controller
            signal.signal(warning, signal.SIG_IGN)
        while True:
            self._run_agent(self._await_controller())
            if self._job_ended is not None:
                leave(self._job_ended.remark)
                return self._job_ended.exit_code
            if self._signum:
                return 128 + self._signum
            if self._is_taken_in:
                _tell(f"the controller at {self._place} is gone, or has given this node up: joining again")
            self._is_taken_in = False

    def _end(self, signum: int, _: FrameType | None) -> None:
        if self._agent is None:
            raise SystemExit(128 + signum)
        if self._signum:
            self._agent.kill()
        else:
            self._signum = signum
            self._agent.terminate()

    def _await_controller(self) -> str:
        """Wait until somebody listens where the controller should, and return that address."""
        late_s = time.monotonic() + LATE_S
        why = "it does not let this node in: are secret and version the same, and does no other copy have this index?"
        while (now_s := time.monotonic()) < self._until_s:
            try:
                address = address_of(self._place.host)
                if listens(address, self._place.port):
                    return address
                why = "nobody listens there, or a firewall is in between"
            except OSError as error:
                why = error.strerror or str(error)
            if now_s >= late_s:
                late_s = self._until_s
                _tell(f"waiting for the controller at {self._place}, up to {self._wait_s:g} s: {why}")
            time.sleep(LOOK_S)
        raise AllocationError(f"no controller at {self._place} within {self._wait_s:g} s: {why}")

    def _run_agent(self, address: str) -> None:
        own = str(ipaddress.ip_address(address) + self._place.index) if is_loopback(address) else ""
        token = self._secret.token(self._place, address, own)
        gpus = ["--gpus"] if self._finds_gpus else []
        agent = self._agent = subprocess.Popen(
            [*HANDSHAKE_COMMAND, *gpus, JOINS, str(self._save_s), str(self._wait_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env=own_variables(os.environ),
        )
        reader = threading.Thread(target=self._read, args=[agent.stdout], name="agent", daemon=True)
        reader.start()
        stdin = cast("IO[bytes]", agent.stdin)
        with suppress(BrokenPipeError):  # it has ended already
            stdin.write(encode(token))
            stdin.flush()
        agent.wait()
        with suppress(BrokenPipeError):
            stdin.close()
        self._agent = None
        end_descendants(deadline_s=FORCED_STOP_S)
        reap_orphans(own=())
        remove_stale_folders(runtime_root())
        reader.join(READ_S)

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                try:
                    message = decode(line, TakenIn, JobEnded)
                except MessageError:  # a library's, which was loaded to find the devices
                    continue
                if isinstance(message, JobEnded):
                    self._job_ended = message
                self._is_taken_in = True
                self._until_s = time.monotonic() + self._wait_s


def _tell(text: str) -> None:
    sys.stderr.write(f"laggard: {text}\n")
    sys.stderr.flush()
