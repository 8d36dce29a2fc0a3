"""Runs ``laggard`` on the primary node, for a user who typed it on a login node inside ``salloc``.

Input, output, the terminal and the exit code pass through ``srun``. Signals do not: on SIGTERM ``srun`` kills the step
at once, and ``scancel`` would signal every process on the node. So a second step, which runs this module, delivers
signals to the ``laggard`` on the primary alone.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

import psutil

from laggard.resilience.agent.processes import environment_of
from laggard.resilience.allocation.slurm import RELAY_MARK, Srun, slurm_node_names
from laggard.resilience.errors import AllocationError

DELIVERY_DEADLINE_S = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_on_primary(primary: str, arguments: Sequence[str]) -> int:
    """Run ``laggard`` with these arguments on the primary node and return its exit code."""
    mark = secrets.token_hex(8)
    on_terminal = all(os.isatty(stream) for stream in range(3))
    command = Srun().command(primary, [sys.executable, "-P", "-m", "laggard", *arguments])
    if on_terminal:
        command.insert(command.index("srun") + 1, "--pty")
    step = subprocess.Popen(
        command,
        env={**os.environ, RELAY_MARK: mark},
        # We forward a Ctrl-C of the terminal ourselves; with --pty, srun reads it as a key and needs the terminal.
        start_new_session=not on_terminal,
    )

    def forward(signum: int, _: FrameType | None) -> None:
        # When Slurm ends the job, it has already signalled the primary; a second signal there means "at once".
        if not Srun().time_to_save().is_over and not _delivered(primary, mark, signum):
            step.terminate()

    for each in SIGNALS:
        signal.signal(each, forward)
    exit_code = step.wait()
    if exit_code == 0 and primary not in slurm_node_names():  # srun reports success when a node is lost
        raise AllocationError(
            f"the primary, {primary}, is lost: with --state-dir or --state-server, the same command resumes from State"
        )
    return exit_code if exit_code >= 0 else 128 - exit_code


def _delivered(primary: str, mark: str, signum: int) -> bool:
    command = Srun().command(
        primary, [sys.executable, "-P", "-m", "laggard.resilience.command.relay", mark, str(signum)]
    )
    try:
        return subprocess.run(command, timeout=DELIVERY_DEADLINE_S, capture_output=True).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def deliver(mark: str, signum: int) -> bool:
    """Send a signal to the topmost process that carries a mark; return whether there is one."""
    marked = {p.pid: p for p in psutil.process_iter() if environment_of(p).get(RELAY_MARK) == mark}
    topmost = [process for process in marked.values() if process.ppid() not in marked]
    for process in topmost:
        process.send_signal(signum)
    return bool(topmost)


def main(arguments: Sequence[str]) -> int:
    """Deliver a signal, given the mark and the signal's number."""
    mark, signum = arguments
    return 0 if deliver(mark, int(signum)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
