"""The handshakes of remote agents: behind a noisy shell, and of hosts that take long or fail."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Collection

from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.loop import Loop
from laggard.resilience.allocation.discovery import PendingAgent, await_handshakes
from laggard.resilience.allocation.ssh import Ssh
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import Handshake

LOOP = Loop("handshakes")
HANDSHAKE = encode(Handshake(8, ("0", "1"))).decode().rstrip()
NOISE = "for n in $(seq 400); do echo welcome $n; done; printf 'no end {\"Handshake\": '"


def agent(script: str, *, hangs: bool = False) -> PendingAgent:
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the pending agent closes it
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )
    if not hangs:
        process.wait(60)  # what it prints fits into the pipe
    return PendingAgent(process, stderr, Channel(LOOP, lambda _: None))


def test_a_noisy_shell_does_not_hide_the_handshake() -> None:
    *_, remote = Ssh().command("node1", ["echo", HANDSHAKE])
    noisy = agent(f"{NOISE}; {remote}")
    assert await_handshakes({"node1": noisy}) == {"node1": Handshake(8, ("0", "1"))}
    noisy.cancel()


def test_noise_without_end_is_not_read_for_ever() -> None:
    endless = agent("while echo welcome; do :; done", hangs=True)
    endless.max_noise_bytes = 5000
    assert await_handshakes({"node1": endless}) == {}
    assert endless.complaint() == "a shell answers, but laggard does not start there"
    endless.cancel()


def test_a_host_that_hangs_is_named_before_it_is_given_up() -> None:
    hanging, well = agent("exec sleep 600", hangs=True), agent(f"echo '{HANDSHAKE}'")
    named: list[str] = []

    def on_late(late: Collection[str]) -> None:
        named.extend(late)
        assert hanging.complaint() == "nothing answers yet"
        hanging.process.kill()

    assert await_handshakes({"node1": well, "node2": hanging}, 1, on_late, 0.01).keys() == {"node1"}
    assert "node2" in named
    hanging.cancel()
    well.cancel()


def test_nobody_is_late_where_all_have_answered_or_failed() -> None:
    refused, well = agent("echo 'Connection refused' >&2; exit 255"), agent(f"echo '{HANDSHAKE}'")
    named: list[str] = []
    assert await_handshakes({"node1": well, "node2": refused}, 0, named.extend).keys() == {"node1"}
    assert named == []
    assert refused.complaint() == "Connection refused"
    refused.cancel()
    well.cancel()
