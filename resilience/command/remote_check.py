"""Checks the devices of many nodes, all nodes at once: the remote part of ``laggard doctor``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.supervised_check import NodeCheck
from laggard.kvstore.client.environment import NODE
from laggard.logs import last_line_of
from laggard.records import record_of
from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.remote import env_command

CHECK_COMMAND = (sys.executable, "-P", "-m", "laggard.collectors.supervised_check")
# Enough for a node with eight devices of which the last seven are stuck.
ANSWER_TIMEOUT_S = 120.0
MAX_CONCURRENT = 64
_NO_COMMAND = 126, 127  # what a shell ends with if it cannot run a command
_OF_PYTHON = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b|No module named")
NO_GPU = "no GPU found: use --virtual-gpus=K to check the processor instead"


def check_hosts(
    transports: Mapping[str, Transport | None], virtual_gpus: int, answer_timeout_s: float = ANSWER_TIMEOUT_S
) -> Iterator[tuple[str, NodeCheck]]:
    """Yield each host with what was found on it, as the answers come in."""
    # A host that does not answer has a single check, of all devices, that says why.
    with ThreadPoolExecutor(min(MAX_CONCURRENT, len(transports)), "remote-check") as threads:
        hosts = {
            threads.submit(_check_host, host, transport, virtual_gpus, answer_timeout_s): host
            for host, transport in transports.items()
        }
        for done in as_completed(hosts):
            yield hosts[done], done.result()


def _check_host(host: str, transport: Transport | None, virtual_gpus: int, answer_timeout_s: float) -> NodeCheck:
    argv = [*env_command(**{NODE: host}), *CHECK_COMMAND, f"--virtual-gpus={virtual_gpus}"]
    command = argv if transport is None else transport.command(host, argv)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=answer_timeout_s, cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(f"no answer within {answer_timeout_s:g} s")
    if done.returncode:
        last_line = last_line_of(done.stderr) or "no error message"
        if done.returncode in _NO_COMMAND or _OF_PYTHON.search(last_line):
            return NodeCheck((DeviceCheck(ALL_DEVICES, failure=f"laggard does not run there: {last_line}"),))
        return _failed(f"no answer: {last_line}")
    # A login shell may print other lines.
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"is": "NodeCheck"')]
    check = record_of(NodeCheck, found[-1]) if found else _failed(NO_GPU)
    return check if check.checks else replace(check, checks=_failed(NO_GPU).checks)


def _failed(reason: str) -> NodeCheck:
    return NodeCheck((DeviceCheck(ALL_DEVICES, trouble=reason),))
