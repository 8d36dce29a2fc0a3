"""Checks this machine's devices in a child process, with a deadline for each answer, because a driver may hang.

``python -m laggard.collectors.supervised_check [--virtual-gpus K]`` prints what was found as a line of JSON, for
whoever checks many nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from laggard.collectors.answering_process import AnsweringProcess
from laggard.collectors.boards import Board, Boards
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.links.peer_check import PeerCheck
from laggard.records import plain, record_of

_CHECKS = "laggard.collectors.device_check"
_BOARDS = "laggard.collectors.boards"
_PEERS = "laggard.collectors.links.peer_check"
# The first device includes loading the driver and compiling the probes; each of the others takes about a second.
FIRST_ANSWER_DEADLINE_S = 30.0
NEXT_ANSWER_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What was found on one machine."""

    checks: tuple[DeviceCheck, ...]  # of its devices
    boards: Boards = field(default_factory=Boards)
    peers: PeerCheck = field(default_factory=PeerCheck)  # the links between its GPUs


def check_devices_here(
    environ: Mapping[str, str],
    first_answer_s: float = FIRST_ANSWER_DEADLINE_S,
    next_answer_s: float = NEXT_ANSWER_DEADLINE_S,
) -> Iterator[DeviceCheck]:
    """Yield the check of each of this machine's devices, one after the other."""
    # A device that does not answer in time, or whose check fails, gets a check that says so, and the others are checked
    # in a new process.
    left: list[str] | None = None
    while left is None or left:
        with AnsweringProcess(_CHECKS, left or (), environ) as process:
            try:
                names = json.loads(process.line(first_answer_s))
            except TimeoutError as error:
                yield DeviceCheck(ALL_DEVICES, trouble=f"the driver does not list its devices: {error}")
                return
            except EOFError as error:
                yield DeviceCheck(ALL_DEVICES, failure=f"the devices cannot be listed: {error}")
                return
            left = names if left is None else left
            wait_s = first_answer_s
            while left:
                gpu = left.pop(0)
                check = _next_check(process, gpu, wait_s)
                yield check
                if check.trouble or check.failure:
                    break
                wait_s = next_answer_s


def _next_check(process: AnsweringProcess, gpu: str, wait_s: float) -> DeviceCheck:
    try:
        return record_of(DeviceCheck, json.loads(process.line(wait_s)))
    except TimeoutError as error:
        return DeviceCheck(gpu, trouble=str(error))
    except EOFError as error:
        return DeviceCheck(gpu, failure=str(error))


def boards_here(
    environ: Mapping[str, str],
    first_answer_s: float = FIRST_ANSWER_DEADLINE_S,
    next_answer_s: float = NEXT_ANSWER_DEADLINE_S,
) -> Boards:
    """Return this machine's GPUs as NVIDIA's driver lists them, up to the first that does not answer in time."""
    found: list[Board] = []
    with AnsweringProcess(_BOARDS, (), environ) as process:
        try:
            count, is_all = json.loads(process.line(first_answer_s))
            while len(found) < count:
                found.append(record_of(Board, json.loads(process.line(next_answer_s))))
        except TimeoutError as error:
            silent = f"gpu {len(found)} of the driver" if found else "the driver"
            return Boards((*found, Board(name=silent, faults=(str(error),))), is_all=False)
        except EOFError as error:
            return Boards(tuple(found), is_all=False, failure=f"the driver's report cannot be read: {error}")
    return Boards(tuple(found), is_all=is_all and not any(board.is_hidden for board in found))


def peers_here(
    environ: Mapping[str, str], checks: Iterable[DeviceCheck], answer_s: float = FIRST_ANSWER_DEADLINE_S
) -> PeerCheck:
    """Return what copies between this machine's GPUs take, but for those whose checks have failed."""
    names = [check.gpu for check in checks if check.seconds]
    if len(names) < 2:
        return PeerCheck()
    with AnsweringProcess(_PEERS, names, environ) as process:
        try:
            return record_of(PeerCheck, json.loads(process.line(answer_s)))
        except (TimeoutError, EOFError) as error:
            return PeerCheck(failure=str(error))


def device_environment(virtual_gpus: int, directory: str) -> dict[str, str]:
    """Return the environment in which a process finds that many virtual devices, or with 0 the machine's GPUs."""
    if virtual_gpus == 0:
        return dict(os.environ)
    one_core_each = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | {VIRTUAL_DEVICES: str(virtual_gpus), VIRTUAL_DEVICE_DIR: directory} | one_core_each


def check_here(virtual_gpus: int, tell: Callable[[DeviceCheck], object] = lambda _: None) -> NodeCheck:
    """Check this machine, or the processor as so many virtual devices; each check is told as it comes in."""
    checks = []
    with tempfile.TemporaryDirectory(prefix="laggard-checks-") as directory:
        for check in check_devices_here(device_environment(virtual_gpus, directory)):
            checks.append(check)
            tell(check)
    if virtual_gpus:
        return NodeCheck(tuple(checks))
    return NodeCheck(tuple(checks), boards_here(os.environ), peers_here(os.environ, checks))


def main(argv: Sequence[str]) -> int:
    """Print the check of this machine."""
    parser = argparse.ArgumentParser(prog="python -m laggard.collectors.supervised_check")
    parser.add_argument("--virtual-gpus", type=int, default=0, metavar="K")
    print(json.dumps(plain(check_here(parser.parse_args(argv).virtual_gpus))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
