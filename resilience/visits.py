"""The doctor's visits: checkups of the devices of many nodes, all nodes at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from collectors.checkup import Checkup
from collectors.checkups import ALL_DEVICES
from kvstore.environment import NODE
from resilience.allocation.remote import Transport, needed_at_once

__all__ = ["visits"]

CHECKUPS_COMMAND = (sys.executable, "-m", "collectors.checkups")
# Eight devices, the last seven of which are stuck, are told of in less.
ANSWER_S = 120.0
AT_ONCE = 64
NO_GPU = "there is no GPU: --virtual-gpus=K has the processor stand in"


def visits(
    transports: Mapping[str, Transport | None], virtual_gpus: int, answer_s: float = ANSWER_S
) -> Iterator[tuple[str, list[Checkup]]]:
    """Yield each host with the checkups of its devices, as they come in.

    A host that does not answer has one checkup, of all devices, that says why.

    Parameters
    ----------
    transports
        How each host is reached; ``None``: it is this machine.
    virtual_gpus
        Virtual devices to check on each; 0: its GPUs.
    answer_s
        How long a host has to answer.
    """
    with ThreadPoolExecutor(min(AT_ONCE, len(transports)), "visit") as threads:
        waiting = {
            threads.submit(_visit, host, transport, virtual_gpus, answer_s): host
            for host, transport in transports.items()
        }
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _visit(host: str, transport: Transport | None, virtual_gpus: int, answer_s: float) -> list[Checkup]:
    argv = [*needed_at_once(**{NODE: host}), *CHECKUPS_COMMAND, f"--virtual-gpus={virtual_gpus}"]
    command = argv if transport is None else transport.command(host, argv)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=answer_s, cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        return [_trouble(f"no answer within {answer_s:g} s")]
    if done.returncode:
        return [_trouble(f"no answer: {_last_words(done.stderr)}")]
    # A login shell may say something, too.
    lines = [line for line in done.stdout.splitlines() if line.startswith(b'{"gpu"')]
    return [Checkup.from_json(line) for line in lines] or [_trouble(NO_GPU)]


def _trouble(why: str) -> Checkup:
    return Checkup(ALL_DEVICES, trouble=why)


def _last_words(said: bytes) -> str:
    lines: Sequence[str] = said.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "not a word")
