"""The handshakes of remote agents: behind a noisy shell, and of hosts that take long or fail."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from typing import IO, cast

import pytest

from laggard.resilience.agent.handshake import found_here
from laggard.resilience.allocation.agent_listener import AgentListener
from laggard.resilience.allocation.discovery import OwnAgent, Pending, await_handshakes
from laggard.resilience.allocation.remote import HANDSHAKE_COMMAND
from laggard.resilience.allocation.ssh import Ssh
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import CannotDial
from tests.waiting import wait_until

ANSWERS = f"exec {shlex.join(HANDSHAKE_COMMAND)}"
NOISE = 'for n in $(seq 400); do echo welcome $n; done; printf \'no end {"is": "Handshake", \''
HERE = found_here([])

Start = Callable[[str], OwnAgent]


@pytest.fixture
def start() -> Iterator[Start]:
    """Returns a function that starts an agent by a script of a shell."""
    listener = AgentListener("127.0.0.1")
    started: list[OwnAgent] = []

    def start(script: str) -> OwnAgent:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the agent closes it
        command, pipe = ["sh", "-c", script], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True)
        channel = listener.channel(lambda _: process.poll() is None)
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            cast("IO[bytes]", process.stdin).write(encode(listener.admit(channel)))
            cast("IO[bytes]", process.stdin).flush()
        started.append(OwnAgent(process.pid, channel, process, stderr))
        return started[-1]

    yield start
    for agent in started:
        with contextlib.suppress(BrokenPipeError):
            agent.close()
        agent.kill()
        agent.wait()
    listener.close()


def test_a_noisy_shell_does_not_hide_the_handshake(start: Start) -> None:
    *_, remote = Ssh().command("node1", HANDSHAKE_COMMAND)
    assert await_handshakes({"node1": Pending(start(f"{NOISE}; {remote}"))}) == {"node1": HERE}


def test_noise_without_end_is_not_read_for_ever(start: Start) -> None:
    endless = start("while echo welcome; do :; done")
    assert await_handshakes({"node1": Pending(endless)}, late_s=0.5, refusal_s=0.5, may_miss=-1) == {}
    assert endless.complaint() == "a shell answers, but laggard does not start there"


def test_a_shell_that_has_answered_is_remembered(start: Start) -> None:
    welcomes = start("echo welcome; exec sleep 600")
    wait_until(lambda: welcomes.complaint() != "nothing answers yet")
    assert welcomes.complaint() == "a shell answers, but laggard does not start there"


def test_a_host_that_hangs_is_named_before_it_is_given_up(start: Start) -> None:
    hanging, well = start("exec sleep 600"), start(ANSWERS)
    named: list[str] = []

    def on_late(late: Collection[str]) -> None:
        named.extend(late)
        assert hanging.complaint() == "nothing answers yet"
        hanging.process.kill()

    pending = {"node1": Pending(well), "node2": Pending(hanging)}
    assert await_handshakes(pending, 1, on_late, 0.01) == {"node1": HERE}
    assert "node2" in named


def test_an_agent_that_runs_and_cannot_dial_says_so_and_is_not_waited_for(start: Start) -> None:
    line = encode(CannotDial("", 60901)).decode().strip()
    cut_off, well = start(f"echo '{line}' >&2; exec sleep 600"), start(ANSWERS)
    pending = {"node1": Pending(well), "node2": Pending(cut_off)}
    wait_until(lambda: cut_off.complaint() == CannotDial("", 60901))
    assert await_handshakes(pending, 1, late_s=0.01, refusal_s=0.02) == {"node1": HERE}


def test_nobody_is_late_where_all_have_answered_or_failed(start: Start) -> None:
    refused = start("echo 'Connection refused' >&2; exit 255")
    named: list[str] = []
    pending = {"node1": Pending(start(ANSWERS)), "node2": Pending(refused)}
    assert await_handshakes(pending, 0, named.extend, 60.0, 60.0) == {"node1": HERE}
    assert named == []
    assert refused.complaint() == "Connection refused"


def test_an_agent_that_nothing_starts_is_started_by_itself(start: Start) -> None:
    pending = Pending(start("exit 1"), lambda: start(ANSWERS))
    assert await_handshakes({"node1": pending}, 0, late_s=60.0, refusal_s=60.0) == {"node1": HERE}
