"""Running ourselves on the primary: who types ``laggard`` on a login node, inside ``salloc``, is not on a node.

The program's output, its input and the terminal pass through ``srun``, and so does the exit code. Signals do not: on
SIGTERM ``srun`` kills at once, and ``scancel`` would send it to everything there. So a second step, which is this
module as a program, delivers them to the ``laggard`` there alone.
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

from resilience.allocation.base import AllocationError
from resilience.allocation.slurm import Srun, slurm_node_names
from resilience.processes import environment_of

__all__ = ["deliver", "main", "run_on_primary"]

MARK = "LAGGARD_RELAY"
DELIVERY_DEADLINE_S = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_on_primary(primary: str, arguments: Sequence[str]) -> int:
    """Run ``laggard`` with these arguments on the primary node and return its exit code.

    Raises
    ------
    AllocationError
        If the primary is lost.
    """
    mark = secrets.token_hex(8)
    on_terminal = all(os.isatty(stream) for stream in range(3))
    command = Srun().command(primary, [sys.executable, "-m", "resilience.cli", *arguments])
    if on_terminal:
        command.insert(1, "--pty")
    step = subprocess.Popen(
        command,
        env={**os.environ, MARK: mark},
        # A terminal's Ctrl-C is for us to pass on; with --pty srun reads it as a key, and needs the terminal itself.
        start_new_session=not on_terminal,
    )

    def pass_on(signum: int, _: FrameType | None) -> None:
        # Where Slurm ends the job it has told the other side already; a second signal there means "at once".
        if not Srun().is_ending() and not _delivered(primary, mark, signum):
            step.terminate()

    for each in SIGNALS:
        signal.signal(each, pass_on)
    exit_code = step.wait()
    if exit_code == 0 and primary not in slurm_node_names():  # srun calls it a success when a node is lost
        raise AllocationError(f"the primary, {primary}, is lost: with --state-dir the same command goes on from State")
    return exit_code if exit_code >= 0 else 128 - exit_code


def _delivered(primary: str, mark: str, signum: int) -> bool:
    command = Srun().command(primary, [sys.executable, "-m", "resilience.relay", mark, str(signum)])
    try:
        return subprocess.run(command, timeout=DELIVERY_DEADLINE_S, capture_output=True).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def deliver(mark: str, signum: int) -> bool:
    """Send a signal to the first of the processes that carry a mark; return whether there is one."""
    marked = {p.pid: p for p in psutil.process_iter() if environment_of(p).get(MARK) == mark}
    first = [process for process in marked.values() if process.ppid() not in marked]
    for process in first:
        process.send_signal(signum)
    return bool(first)


def main(arguments: Sequence[str]) -> int:
    """Deliver a signal: mark and number are given."""
    mark, signum = arguments
    return 0 if deliver(mark, int(signum)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
