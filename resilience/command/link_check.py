"""Measures the links between many nodes, once: the part of ``laggard doctor`` that is about more than one node."""

from __future__ import annotations

import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any, cast

from laggard.collectors.links.handshake import key_of
from laggard.collectors.links.prober import FIRST_BYTES, bytes_for
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import circle, partner_in
from laggard.kvstore.client.environment import NODE
from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.network import resolve_addresses
from laggard.resilience.allocation.remote import env_command
from laggard.resilience.errors import NodeAddressError

CHECK_COMMAND = (sys.executable, "-P", "-m", "laggard.collectors.links.check")
DEADLINE_S = 120.0
"""For each answer of a node."""
PARTNERS = 8

Ask = Callable[[Mapping[str, object]], Mapping[str, Mapping[str, Any] | None]]
"""Tells nodes what to do, all at once, and returns what each has answered; None: it is gone."""


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """What was measured: one reading of each link, and why there are others of which there is none."""

    readings: Sequence[LinkReading] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


def check_links(transports: Mapping[str, Transport | None], names: Mapping[str, str]) -> LinkCheck:
    """Return the times of transfers that the nodes send each other, each node one at a time."""
    hosts = list(transports)
    if len(hosts) < 2:
        return LinkCheck()
    here = [host for host, transport in transports.items() if transport is None][:1] or [""]
    others = {host: names[host] for host in hosts if host not in here}
    try:
        addresses = resolve_addresses({here[0]: "", **others})
    except NodeAddressError as error:
        return LinkCheck(failures={error.host: str(error)})
    key = key_of(secrets.token_hex(32), "doctor", 0).hex()
    with contextlib.ExitStack() as processes, ThreadPoolExecutor(len(hosts), "link-check") as threads:
        nodes = {host: processes.enter_context(_started(host, transport)) for host, transport in transports.items()}

        def ask(commands: Mapping[str, object]) -> dict[str, dict[str, Any] | None]:
            asked = {host: threads.submit(nodes[host].ask, command) for host, command in commands.items()}
            return {host: answer.result() for host, answer in asked.items()}

        listening = ask({host: {"host": host, "address": addresses[host], "key": key} for host in hosts})
        silent = {host: "no answer" for host, answer in listening.items() if answer is None}
        listens = {host: answer["links"] for host, answer in listening.items() if answer is not None}
        if len(listens) < 2:
            return LinkCheck(failures=silent)
        return _measured(ask, listens, silent)


def _measured(ask: Ask, listens: Mapping[str, object], silent: Mapping[str, str]) -> LinkCheck:
    exchanges = circle(sorted(listens), PARTNERS)
    partners = {host: [partner_in(pairs, host) for pairs in exchanges] for host in listens}
    n_bytes, check = FIRST_BYTES, LinkCheck(failures=silent)
    for number in range(2):  # the first only to choose the number of bytes
        terms = {"round": number, "addresses": listens, "n_bytes": n_bytes}
        check = _check_of(ask({host: terms | {"partners": partners[host]} for host in listens}), silent)
        if check.readings:
            rate = statistics.median(each.n_bytes / each.duration_s for each in check.readings)
            n_bytes = bytes_for(rate)
    return check


def _check_of(found: Mapping[str, Mapping[str, Any] | None], silent: Mapping[str, str]) -> LinkCheck:
    readings = [LinkReading(**each) for answer in found.values() if answer for each in answer["links"]]
    failures = {
        f"{host} to {partner}": str(why)
        for host, answer in found.items()
        if answer
        for partner, why in answer["failures"].items()
    }
    return LinkCheck(readings, {**silent, **failures})


class _Node:
    """The process on a node, which answers line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, command: object) -> dict[str, Any] | None:
        """Send a command and return the answer; None if the process has ended, or did not answer in time."""
        commands, answers = (cast("IO[bytes]", pipe) for pipe in (self._process.stdin, self._process.stdout))
        deadline = threading.Timer(DEADLINE_S, self._process.kill)
        deadline.start()
        try:
            commands.write(json.dumps(command).encode() + b"\n")
            commands.flush()
            for line in answers:  # a login shell may print others
                if line.startswith(b'{"links"'):
                    return dict(json.loads(line))
        except BrokenPipeError:
            return None
        finally:
            deadline.cancel()
        return None


@contextlib.contextmanager
def _started(host: str, transport: Transport | None) -> Iterator[_Node]:
    """Run the node's part while the block lasts."""
    argv = [*env_command(**{NODE: host}), *CHECK_COMMAND]
    command = argv if transport is None else transport.command(host, argv)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, cwd="/") as process:  # type: ignore[call-overload]
        try:
            yield _Node(process)
        finally:
            with contextlib.suppress(BrokenPipeError):  # of what it was sent and did not read
                process.stdin.close()
            process.kill()
