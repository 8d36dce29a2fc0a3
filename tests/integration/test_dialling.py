"""Agents dial the controller: nothing is lost with a connection, and nobody else gets in or keeps them out."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest

from laggard.kvstore.certificates import Authority
from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import COUNT, GREETING, Dialled, Invitation, proof_of
from laggard.resilience.agent.handshake import own_address
from laggard.resilience.agent.tls_connection import TLSConnection
from laggard.resilience.allocation import agent_listener
from laggard.resilience.allocation.agent_listener import MAX_UNPROVEN, AgentListener, Callers
from tests.integration.flood import STRANGER, flooded
from tests.waiting import wait_until

DEADLINE_S = 30.0
N_LINES = 3000


@pytest.fixture
def listener() -> Iterator[AgentListener]:
    listener = AgentListener("127.0.0.1", Callers())
    yield listener
    listener.close()


def test_each_node_derives_an_invitation_of_its_own_that_leads_to_its_channel_only(listener: AgentListener) -> None:
    channels = {host: Channel(lambda _: True) for host in ("node1", "node2")}
    together = listener.invite_together(channels)
    own = {host: together.of_node(host) for host in channels}
    assert len({together.secret, *(each.secret for each in own.values())}) == 3
    assert together.secret not in repr(together)
    reader, writer = os.pipe()
    agent = Dialled(own["node2"], reader)
    wait_until(lambda: channels["node2"].is_connected)
    assert not channels["node1"].is_connected
    os.close(writer)
    channels["node2"].abandon()
    agent.finish()
    os.close(agent.commands)
    os.close(reader)


class Ends:
    """Both ends of a channel; ``start_up`` is the pipe that the invitation came through."""

    def __init__(self, listener: AgentListener) -> None:
        self.gone = threading.Event()
        self.controller = Channel(self._await_connection)
        self.invitation = listener.invite(self.controller)
        reader, self.start_up = os.pipe()
        self._reader = reader
        self.agent = Dialled(self.invitation, reader)
        self.commands = os.fdopen(self.agent.commands, "rb")

    def _await_connection(self, channel: Channel) -> bool:
        channel.wait(0.1)
        return channel.is_connected or not self.gone.is_set()

    def close(self) -> None:
        self.gone.set()
        self.controller.abandon()
        with closing(self.commands):
            os.close(self.start_up)
            self.agent.finish()
        os.close(self._reader)


@pytest.fixture
def ends(listener: AgentListener) -> Iterator[Ends]:
    with closing(Ends(listener)) as ends:
        yield ends


def connect(invitation: Invitation) -> socket.socket:
    return socket.create_connection((invitation.address, invitation.port), DEADLINE_S)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other end to close a connection, and return whether it did so without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def greeting(invitation: Invitation, secret: bytes | None = None) -> bytes:
    agent, once = bytes.fromhex(invitation.agent), secrets.token_bytes(16)
    return GREETING.pack(agent, once, proof_of(secret or bytes.fromhex(invitation.secret), agent, once))


def test_every_message_arrives_once_and_in_order_however_often_the_connection_drops(ends: Ends) -> None:
    lines = [b"%d %s" % (number, b"x" * (number * 37 % 4000)) for number in range(N_LINES)]
    writers = [
        threading.Thread(target=lambda: [ends.controller.write(line + b"\n") for line in lines]),
        threading.Thread(target=lambda: [ends.agent.answers.write(line.decode() + "\n") for line in lines]),
    ]
    heard: list[bytes] = []

    def hear() -> None:
        for line in ends.controller:
            heard.append(line)
            if len(heard) % 100 == 50:
                ends.controller.detach()  # as when the network drops it: the agent dials again

    hearing = threading.Thread(target=hear)
    for thread in (hearing, *writers):
        thread.start()
    commands = [ends.commands.readline().rstrip(b"\n") for _ in lines]
    wait_until(lambda: len(heard) >= N_LINES)
    for thread in writers:
        thread.join(DEADLINE_S)
    assert commands == lines
    assert heard == lines
    ends.gone.set()
    ends.controller.abandon()
    hearing.join(DEADLINE_S)


def test_the_end_of_one_end_is_heard_at_the_other(ends: Ends) -> None:
    ends.agent.answers.write("last words\n")
    ends.controller.close()
    assert ends.commands.readline() == b""
    with ends.controller:
        assert next(iter(ends.controller)) == b"last words"
    with pytest.raises(BrokenPipeError):
        ends.controller.write(b"more")


def test_an_agent_whose_connection_and_start_up_pipe_have_both_closed_is_alone(listener: AgentListener) -> None:
    ends = Ends(listener)
    try:
        wait_until(lambda: ends.controller.is_connected)
        ends.controller.abandon()
        listener.withdraw(ends.controller)
    finally:
        ends.close()
    assert not ends.agent._reader.is_alive()


def test_who_does_not_know_a_secret_hears_nothing_and_nothing_of_theirs_is_kept(
    listener: AgentListener, ends: Ends
) -> None:
    wait_until(lambda: ends.controller.is_connected)
    unknown = Invitation("", 0, "", secrets.token_hex(16), secrets.token_hex(32))
    for attempt in (
        b"\0" * GREETING.size,
        b"GET / HTTP/1.1\r\n" * 8,
        greeting(unknown),
        greeting(ends.invitation, b"?"),
    ):
        with connect(ends.invitation) as stranger:
            stranger.sendall(attempt)
            assert is_closed(stranger)
    wait_until(lambda: not listener._unproven)
    assert ends.controller.is_connected


def test_a_greeting_that_somebody_has_overheard_opens_nothing_again(listener: AgentListener, ends: Ends) -> None:
    overheard = greeting(ends.invitation)
    with connect(ends.invitation) as first, connect(ends.invitation) as second:
        first.sendall(overheard)
        wait_until(lambda: any(invited.used for invited in listener._invited.values()))
        wait_until(lambda: len(listener._invited[bytes.fromhex(ends.invitation.agent)].used) >= 2)  # the agent's own
        second.sendall(overheard)
        assert is_closed(second)


def test_a_greeting_without_the_secret_inside_tls_takes_no_place(ends: Ends) -> None:
    wait_until(lambda: ends.controller.is_connected)
    before = ends.controller._connection
    context = ssl.create_default_context(cadata=ends.invitation.authority)
    plain = connect(ends.invitation)
    plain.sendall(greeting(ends.invitation))
    with closing(TLSConnection(plain, context, "127.0.0.1")) as stranger:
        stranger.write(secrets.token_bytes(32) + COUNT.pack(0))
        with pytest.raises(OSError):  # noqa: PT011 - a reset, or an end
            stranger.read(1)
    assert ends.controller._connection is before


def test_an_agent_tells_its_secret_to_nobody_but_the_controller(listener: AgentListener) -> None:
    """Somebody else answers at the address, with a certificate of an authority of its own."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(DEADLINE_S)
        channel = Channel(lambda _: False)
        genuine = listener.invite(channel)
        invitation = Invitation(
            "127.0.0.1", impostor.getsockname()[1], genuine.authority, genuine.agent, genuine.secret
        )
        context = agent_listener._server_context(Authority().issue("127.0.0.1"))
        reader, start_up = os.pipe()
        agent = Dialled(invitation, reader)
        for _ in range(2):
            plain, _ = impostor.accept()
            plain.settimeout(DEADLINE_S)
            heard.append(plain.recv(GREETING.size, socket.MSG_WAITALL))
            with pytest.raises(OSError):  # noqa: PT011 - the agent's alert, or its end
                TLSConnection(plain, context).read(1)
        os.close(start_up)
    agent.finish()
    os.close(agent.commands)
    os.close(reader)
    assert all(bytes.fromhex(genuine.secret) not in each for each in heard)


def test_connections_that_others_hold_keep_no_agent_out(listener: AgentListener) -> None:
    controller = Channel(lambda _: False)
    invitation = listener.invite(controller)
    with ExitStack() as stack:
        for _ in range(3 * MAX_UNPROVEN):
            stack.enter_context(connect(invitation)).sendall(b"sl")
        wait_until(lambda: len(listener._unproven) == MAX_UNPROVEN)
        plain = stack.enter_context(connect(invitation))
        plain.sendall(greeting(invitation))
        context = ssl.create_default_context(cadata=invitation.authority)
        with closing(TLSConnection(plain, context, "127.0.0.1")) as agent:
            agent.write(bytes.fromhex(invitation.secret) + COUNT.pack(0))
            assert agent.read(COUNT.size) == COUNT.pack(0)
            wait_until(lambda: controller.is_connected)
        controller.abandon()


def test_a_flood_of_connections_keeps_no_agent_out(listener: AgentListener) -> None:
    flooding = threading.Event()

    def flood() -> None:
        while not flooding.is_set():
            with ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(connect(invitation)).sendall(b"?" * 40)

    invitation = listener.invite(Channel(lambda _: False))
    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(listener._unproven) > 50)
        with closing(Ends(listener)) as ends:
            for number in range(5):
                wait_until(lambda: ends.controller.is_connected)
                ends.agent.answers.write(f"{number}\n")
                assert ends.controller.receive() == b"%d\n" % number
                ends.controller.detach()
    finally:
        flooding.set()
        for thread in threads:
            thread.join(DEADLINE_S)


def test_who_floods_from_an_address_of_no_node_hardly_reaches_the_listener(listener: AgentListener) -> None:
    invitation = listener.invite(Channel(lambda _: False))
    with flooded((invitation.address, invitation.port)), closing(Ends(listener)) as ends:
        wait_until(lambda: ends.controller.is_connected)
        assert len(listener._unproven) < MAX_UNPROVEN


def test_an_agent_that_dials_from_an_unknown_address_is_known_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dial = partial(socket.create_connection, source_address=(STRANGER, 0))
    monkeypatch.setattr(socket, "create_connection", dial)
    callers, known = Callers(["127.0.0.7"]), list[str]()
    callers.follow(lambda *addresses: known.extend(addresses))
    assert known == ["127.0.0.7"]
    with closing(AgentListener("127.0.0.1", callers)) as listener, closing(Ends(listener)) as ends:
        wait_until(lambda: ends.controller.is_connected)
        ends.controller.detach()
        wait_until(lambda: ends.controller.is_connected)
    assert known == ["127.0.0.7", STRANGER]


def test_a_node_says_from_where_it_calls_the_primary() -> None:
    assert own_address("127.0.0.9") == "127.0.0.1"


def test_a_connection_that_says_nothing_is_closed(listener: AgentListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_listener, "PROOF_S", 0.1)
    invitation = listener.invite(Channel(lambda _: False))
    with connect(invitation) as stranger:
        assert is_closed(stranger)


@pytest.mark.parametrize(
    ("n_agents", "hard", "soft", "told"),
    [
        (1, 4096, 520, ""),
        (100, 4096, 1312, ""),
        (1000, 4096, 4096, "1000 agents may need 8512 open files, and the limit is 4096 (ulimit -Hn)"),
    ],
)
def test_a_process_may_open_what_its_agents_need_as_far_as_the_hard_limit_goes_and_says_so(
    n_agents: int, hard: int, soft: int, told: str
) -> None:
    program = f"""
import resource
from laggard.resilience.allocation.agent_listener import allow_descriptors

resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
few = allow_descriptors({n_agents})
print(*resource.getrlimit(resource.RLIMIT_NOFILE), few)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{soft} {hard} {told}")
    assert bool(told) == ("may be lost" in done.stdout)
