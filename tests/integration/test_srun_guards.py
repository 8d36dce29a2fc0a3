"""The ports of what stands in for ``srun`` are guarded once a node has reached it, and until it ends."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from laggard.resilience.allocation import srun_guards
from laggard.resilience.allocation.srun_guards import SrunGuards
from tests.integration.flood import STRANGER, call, flooded
from tests.waiting import wait_until

NODE, OTHER_NODE, CONTROLLER = "127.0.0.7", "127.0.0.8", "127.0.0.9"
N_PORTS = 2
# Listens at every address of the machine, takes every connection, and says from where it came.
SRUN = f"""
import selectors, socket
selector, held = selectors.DefaultSelector(), []
for _ in range({N_PORTS}):
    listener = socket.create_server(("", 0))
    print(listener.getsockname()[1], flush=True)
    selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        connection, where = key.fileobj.accept()
        held.append(connection)
        print(where[0], flush=True)
"""


class FakeSrun:
    """A running process that listens like ``srun``."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SRUN], stdout=subprocess.PIPE, text=True)
        self.ports = [int(self.next_line()) for _ in range(N_PORTS)]

    def next_line(self) -> str:
        """Return the next port that it listens on, or from where it has got a connection."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def listeners(self) -> list[int]:
        """Return how many sockets listen on each of its ports."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A"]
        return [listening.count(port) for port in self.ports]

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def srun() -> Iterator[FakeSrun]:
    srun = FakeSrun()
    yield srun
    srun.end()
    assert srun.process.stdout is not None
    srun.process.stdout.close()


@contextlib.contextmanager
def guarded(srun: FakeSrun, guards: SrunGuards) -> Iterator[None]:
    """Have a node reach one of its ports, and all of them guarded."""
    guards.guard(srun.process.pid)
    with call(NODE, ("127.0.0.1", srun.ports[0])):
        assert srun.next_line() == NODE
        wait_until(lambda: srun.listeners() == [2] * N_PORTS)
        yield


def controllers() -> Collection[str]:
    return [CONTROLLER]


def guards_of(*nodes: str) -> SrunGuards:
    """Return guards that know these nodes."""
    guards = SrunGuards(controllers)
    guards.admit(*nodes)
    return guards


def test_only_nodes_and_controllers_reach_it(srun: FakeSrun) -> None:
    guards = guards_of(NODE)
    with guarded(srun, guards), contextlib.ExitStack() as stack:
        for port in srun.ports:
            place = ("127.0.0.1", port)
            stack.enter_context(flooded(place))
            for address in (NODE, CONTROLLER, "127.0.0.1"):
                stack.enter_context(call(address, place))
                assert srun.next_line() == address, "nobody else has come to it"
        guards.admit(OTHER_NODE)
        stack.enter_context(call(OTHER_NODE, place))
        assert srun.next_line() == OTHER_NODE


def test_nothing_changes_before_a_node_has_reached_it(srun: FakeSrun) -> None:
    guards = guards_of(NODE)
    guards.guard(srun.process.pid)
    with call(STRANGER, ("127.0.0.1", srun.ports[0])):
        assert srun.next_line() == STRANGER
        assert not guards._is_launched(srun.process.pid)
    guards.admit(STRANGER)  # it was a node, which calls from an address of its own
    with call(STRANGER, ("127.0.0.1", srun.ports[1])):
        assert srun.next_line() == STRANGER
        wait_until(lambda: srun.listeners() == [2] * N_PORTS)


def test_its_ports_are_free_once_it_has_ended(srun: FakeSrun) -> None:
    with guarded(srun, guards_of(NODE)):
        srun.end()
        wait_until(lambda: srun.listeners() == [0] * N_PORTS)


@pytest.mark.parametrize("asked", [lambda: None, controllers])
def test_where_it_cannot_be_guarded_it_takes_everything(
    srun: FakeSrun,
    asked: Callable[[], Collection[str] | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(srun_guards, "second_queues", refuse)
    guards = SrunGuards(asked)
    guards.admit(NODE)
    with call(NODE, ("127.0.0.1", srun.ports[0])):
        assert srun.next_line() == NODE
        with caplog.at_level(logging.DEBUG, "laggard.resilience.allocation"):
            guards.guard(srun.process.pid)
            wait_until(lambda: not guards._pids)
    assert f"strangers reach process {srun.process.pid}: " in caplog.text
    with call(STRANGER, ("127.0.0.1", srun.ports[0])):
        assert srun.next_line() == STRANGER
