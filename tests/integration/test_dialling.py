"""Agents dial the controller: nothing is lost with a connection, and nobody else gets in or keeps them out."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from laggard.resilience.agent.channel import Channel
from laggard.resilience.agent.dialling import COUNT, GREETING, Dialled, Dialler, JoinToken, proof_of
from laggard.resilience.agent.loop import Loop
from laggard.resilience.allocation import agent_listener
from laggard.resilience.allocation.agent_listener import AgentListener
from laggard.system.certificates import Authority
from laggard.system.unproven import MAX_UNPROVEN
from tests.waiting import wait_until

DEADLINE_S = 30.0
N_LINES = 3000
HEAD = struct.Struct(">QI")


@pytest.fixture
def listener() -> Iterator[AgentListener]:
    listener = AgentListener("127.0.0.1")
    yield listener
    listener.close()


def test_each_node_derives_a_join_token_of_its_own_that_leads_to_its_channel_only(listener: AgentListener) -> None:
    channels = {host: listener.channel(lambda _: True) for host in ("node1", "node2")}
    together = listener.token_for_all(channels)
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


def test_one_thread_carries_the_channels_of_all_agents_that_dial_at_once(listener: AgentListener) -> None:
    before = set(threading.enumerate())
    channels = {f"node{number}": listener.channel(lambda _: True) for number in range(100)}
    together = listener.token_for_all(channels)
    heard = {node: Heard(channel) for node, channel in channels.items()}
    loop = Loop("all agents")
    reader, start_up = os.pipe()
    pipes = {node: os.dup(reader) for node in channels}
    diallers = [Dialler(loop, together.of_node(node), pipes[node]) for node in channels]
    for dialler, node in zip(diallers, channels, strict=True):
        dialler.channel.write(f"here is {node}\n".encode())
    wait_until(lambda: all(each.lines == [b"here is " + node.encode()] for node, each in heard.items()))
    assert [thread.name for thread in threading.enumerate() if thread not in before] == ["all agents"]
    for dialler in diallers:
        dialler.channel.abandon()
    loop.close()
    for pipe in (reader, start_up, *pipes.values()):
        os.close(pipe)


class Heard:
    """What comes through a channel."""

    def __init__(self, channel: Channel) -> None:
        self.data = bytearray()
        self.ended = threading.Event()
        channel.read(self._take, self.ended.set)

    def _take(self, data: bytes) -> None:
        self.data += data

    @property
    def lines(self) -> list[bytes]:
        return bytes(self.data).split(b"\n")[:-1]


class Ends:
    """Both ends of a channel; ``start_up`` is the pipe that the join token came through."""

    def __init__(self, listener: AgentListener) -> None:
        self.gone = threading.Event()
        self.controller = listener.channel(lambda _: not self.gone.is_set())
        self.heard = Heard(self.controller)
        self.token = listener.admit(self.controller)
        reader, self.start_up = os.pipe()
        self._reader = reader
        self.agent = Dialled(self.token, reader)
        self.commands = os.fdopen(self.agent.commands, "rb")

    def close(self) -> None:
        self.gone.set()
        self.controller.abandon()
        with closing(self.commands):
            os.close(self.start_up)
            self.agent.finish()
        os.close(self._reader)


def drop(channel: Channel) -> None:
    """Drop the connection of a channel, if there is one, as when the network does."""
    if (connection := channel._connection) is not None:
        with suppress(OSError):
            connection._socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ends(listener: AgentListener) -> Iterator[Ends]:
    with closing(Ends(listener)) as ends:
        yield ends


def connect(token: JoinToken) -> socket.socket:
    return socket.create_connection((token.address, token.port), DEADLINE_S)


class Client:
    """The other end, a step at a time: it is greeted, and shows a secret."""

    def __init__(self, token: JoinToken, secret: bytes | None = None, *, late: bool = False) -> None:
        context = ssl.create_default_context(cadata=token.authority)
        plain = connect(token)
        plain.sendall(greeting(token))
        if late:
            self._connection = plain
            return
        self._connection = context.wrap_socket(plain, server_hostname=token.address)
        self._connection.sendall((secret or bytes.fromhex(token.secret)) + COUNT.pack(0))
        if secret is None:
            assert self.read(COUNT.size) == COUNT.pack(0)

    @property
    def is_connected(self) -> bool:
        return self._connection.fileno() >= 0

    def read(self, n_bytes: int) -> bytes:
        data = b""
        while len(data) < n_bytes and (more := self._connection.recv(n_bytes - len(data))):
            data += more
        return data

    def piece(self) -> int:
        _, length = HEAD.unpack(self.read(HEAD.size))
        return len(self.read(length))

    def close(self) -> None:
        self._connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other end to close a connection, and return whether it did so without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def greeting(token: JoinToken, secret: bytes | None = None) -> bytes:
    agent, once = bytes.fromhex(token.agent), secrets.token_bytes(16)
    return GREETING.pack(agent, once, proof_of(secret or bytes.fromhex(token.secret), agent, once))


def test_every_message_arrives_once_and_in_order_however_often_the_connection_drops(ends: Ends) -> None:
    lines = [b"%d %s" % (number, b"x" * (number * 37 % 4000)) for number in range(N_LINES)]
    writers = [
        threading.Thread(target=lambda: [ends.controller.write(line + b"\n") for line in lines]),
        threading.Thread(target=lambda: [ends.agent.answers.write(line + b"\n") for line in lines]),
    ]
    for thread in writers:
        thread.start()
    commands = []
    for number in range(N_LINES):
        commands.append(ends.commands.readline().rstrip(b"\n"))
        if number % 100 == 50:
            drop(ends.controller)  # the agent dials again
    wait_until(lambda: len(ends.heard.lines) >= N_LINES)
    for thread in writers:
        thread.join(DEADLINE_S)
    assert commands == lines
    assert ends.heard.lines == lines


def test_what_comes_before_anybody_reads_is_kept_and_the_agent_hears_that_it_has_come(listener: AgentListener) -> None:
    """A node waits for its first command until the handshakes of all are there."""
    controller = listener.channel(lambda _: True)
    reader, start_up = os.pipe()
    agent = Dialled(listener.admit(controller), reader)
    for number in range(3):
        agent.answers.write(b"%d\n" % number)
    wait_until(lambda: not agent._channel._unconfirmed and not agent._channel._unsent)
    heard = Heard(controller)
    wait_until(lambda: heard.lines == [b"0", b"1", b"2"])
    os.close(start_up)
    controller.abandon()
    agent.finish()
    os.close(agent.commands)
    os.close(reader)


def test_an_agent_that_reads_nothing_keeps_neither_its_own_messages_nor_the_other_agents_waiting(
    listener: AgentListener, ends: Ends
) -> None:
    """Its pipe is full, then what the kernel holds of its connection."""
    with closing(Ends(listener)) as other:
        for _ in range(50):
            other.controller.write(b"x" * 1_000_000)
        other.agent.answers.write(b"I am here\n")
        wait_until(lambda: other.heard.lines == [b"I am here"])
        ends.controller.write(b"go on\n")
        assert ends.commands.readline() == b"go on\n"
        assert sum(len(other.commands.read(1_000_000)) for _ in range(50)) == 50_000_000


def test_a_connection_that_takes_no_more_is_replaced_and_keeps_nobody_waiting(
    listener: AgentListener, ends: Ends
) -> None:
    """Whoever holds it up is in between; the agent dials again."""
    wait_until(lambda: ends.controller.is_connected)
    controller = listener.channel(lambda _: True)
    token = listener.admit(controller)
    with closing(Client(token)) as held_up:
        wait_until(lambda: controller.is_connected)
        controller.write(b"x" * 50_000_000)
        ends.controller.write(b"go on\n")
        assert ends.commands.readline() == b"go on\n"
        with closing(Client(token)) as again:
            read = sum(again.piece() for _ in range(763))
            assert read == 50_000_000
        assert held_up.is_connected
    controller.abandon()


def test_the_end_of_one_end_is_heard_at_the_other(ends: Ends) -> None:
    ends.agent.answers.write(b"last words\n")
    ends.controller.close()
    assert ends.commands.readline() == b""
    ends.agent.finish()
    assert ends.heard.ended.wait(DEADLINE_S)
    assert ends.heard.lines == [b"last words"]
    ends.controller.abandon()
    with pytest.raises(BrokenPipeError):
        ends.controller.write(b"more")


def test_last_words_are_heard_even_if_the_connection_is_just_being_replaced(ends: Ends) -> None:
    wait_until(lambda: ends.controller.is_connected)
    drop(ends.controller)
    ends.agent.answers.write(b"last words\n")
    ends.agent.finish()
    wait_until(lambda: ends.heard.lines == [b"last words"])


def test_an_agent_whose_connection_and_start_up_pipe_have_both_closed_is_alone(listener: AgentListener) -> None:
    ends = Ends(listener)
    try:
        wait_until(lambda: ends.controller.is_connected)
        listener.withdraw(ends.controller)
        ends.controller.abandon()
        os.close(ends.start_up)
        assert ends.commands.readline() == b""
        with pytest.raises(BrokenPipeError):
            ends.agent.answers.write(b"is anybody there?")
    finally:
        ends.start_up = os.open(os.devnull, os.O_RDONLY)
        ends.close()


def test_a_channel_whose_agent_cannot_return_ends(listener: AgentListener, ends: Ends) -> None:
    wait_until(lambda: ends.controller.is_connected)
    listener.withdraw(ends.controller)
    drop(ends.controller)
    wait_until(lambda: not ends.controller.is_connected)
    assert not ends.heard.ended.is_set()
    ends.gone.set()
    assert ends.heard.ended.wait(DEADLINE_S)


def test_who_does_not_know_a_secret_hears_nothing_and_nothing_of_theirs_is_kept(
    listener: AgentListener, ends: Ends
) -> None:
    wait_until(lambda: ends.controller.is_connected)
    unknown = JoinToken("", 0, "", secrets.token_hex(16), secrets.token_hex(32))
    for attempt in (
        b"\0" * GREETING.size,
        b"GET / HTTP/1.1\r\n" * 8,
        greeting(unknown),
        greeting(ends.token, b"?"),
    ):
        with connect(ends.token) as unproven:
            unproven.sendall(attempt)
            assert is_closed(unproven)
    wait_until(lambda: not listener._unproven)
    assert ends.controller.is_connected


def test_a_greeting_that_somebody_has_overheard_opens_nothing_again(listener: AgentListener, ends: Ends) -> None:
    overheard = greeting(ends.token)
    with connect(ends.token) as first, connect(ends.token) as second:
        first.sendall(overheard)
        wait_until(lambda: any(invited.used for invited in listener._invited.values()))
        wait_until(lambda: len(listener._invited[bytes.fromhex(ends.token.agent)].used) >= 2)  # the agent's own
        second.sendall(overheard)
        assert is_closed(second)


def test_a_greeting_without_the_secret_inside_tls_takes_no_place(ends: Ends) -> None:
    wait_until(lambda: ends.controller.is_connected)
    before = ends.controller._connection
    with closing(Client(ends.token, secrets.token_bytes(32))) as unproven, suppress(ConnectionResetError):
        assert unproven.read(1) == b""
    assert ends.controller._connection is before


def test_of_an_agent_that_dials_again_before_its_turn_only_the_last_connection_is_let_in(
    listener: AgentListener,
) -> None:
    """So however many agents wait for their turn, and however long, none of the work is done twice."""
    listener.admitted_at_once = 0
    controller = listener.channel(lambda _: True)
    token = listener.admit(controller)
    with connect(token) as first, ExitStack() as last:
        first.sendall(greeting(token))
        wait_until(lambda: len(listener._arrivals) == 1)
        last.enter_context(closing(Client(token, late=True)))
        assert is_closed(first)
        assert len(listener._arrivals) == 1


def test_agents_are_let_in_a_few_at_a_time_and_the_others_are_read_in_between(
    listener: AgentListener, ends: Ends
) -> None:
    wait_until(lambda: ends.controller.is_connected)
    listener.admitted_at_once = 0
    others = [listener.channel(lambda _: True) for _ in range(5)]
    with ExitStack() as stack:
        for channel in others:
            stack.enter_context(closing(Client(listener.admit(channel), late=True)))
        wait_until(lambda: len(listener._arrivals) == len(others))
        ends.agent.answers.write(b"still here\n")
        wait_until(lambda: ends.heard.lines == [b"still here"])
        listener.admitted_at_once = 1
        wait_until(lambda: not listener._arrivals)


def test_an_agent_tells_its_secret_to_nobody_but_the_controller(listener: AgentListener) -> None:
    """Somebody else answers at the address, with a certificate of an authority of its own."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(DEADLINE_S)
        genuine = listener.admit(listener.channel(lambda _: False))
        token = JoinToken("127.0.0.1", impostor.getsockname()[1], genuine.authority, genuine.agent, genuine.secret)
        context = agent_listener._server_context(Authority().issue("127.0.0.1"))
        reader, start_up = os.pipe()
        agent = Dialled(token, reader)
        for _ in range(2):
            plain, _ = impostor.accept()
            plain.settimeout(DEADLINE_S)
            heard.append(plain.recv(GREETING.size, socket.MSG_WAITALL))
            with pytest.raises(OSError):  # noqa: PT011 - the agent's alert, or its end
                context.wrap_socket(plain, server_side=True).recv(1)
        os.close(start_up)
    agent.finish()
    os.close(agent.commands)
    os.close(reader)
    assert all(bytes.fromhex(genuine.secret) not in each for each in heard)


def test_connections_that_others_hold_keep_no_agent_out(listener: AgentListener) -> None:
    controller = listener.channel(lambda _: True)
    token = listener.admit(controller)
    with ExitStack() as stack:
        for _ in range(3 * MAX_UNPROVEN):
            stack.enter_context(connect(token)).sendall(b"sl")
        wait_until(lambda: len(listener._unproven) == MAX_UNPROVEN)
        with closing(Client(token)):
            wait_until(lambda: controller.is_connected)


def test_a_connection_that_says_nothing_is_closed() -> None:
    with closing(AgentListener("127.0.0.1", proof_s=0.1)) as listener:
        token = listener.admit(listener.channel(lambda _: False))
        with connect(token) as unproven:
            assert is_closed(unproven)


@pytest.mark.parametrize(
    ("n_together", "n_alone", "hard", "soft", "told"),
    [
        (0, 1, 4096, 520, ""),
        (0, 100, 4096, 1312, ""),
        (0, 1000, 4096, 4096, "1000 agents may need 8512 open files, and the limit is 4096 (ulimit -Hn)"),
        (1000, 0, 4096, 4096, ""),
        (1000, 100, 4096, 4096, "1100 agents may need 4312 open files, and the limit is 4096 (ulimit -Hn)"),
    ],
)
def test_a_process_may_open_what_its_agents_need_as_far_as_the_hard_limit_goes_and_says_so(
    n_together: int, n_alone: int, hard: int, soft: int, told: str
) -> None:
    program = f"""
import resource
from laggard.resilience.allocation.agent_listener import allow_descriptors, lack_of_descriptors

resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
allow_descriptors({n_together + n_alone})
print(*resource.getrlimit(resource.RLIMIT_NOFILE), lack_of_descriptors({n_together}, {n_alone}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{soft} {hard} {told}")
    assert bool(told) == ("may be lost" in done.stdout)
