"""Messages between programs, shard servers and their peers: a line of JSON, then the bytes that it announces.

Nothing is unpickled, and no message makes the receiver allocate what it has not decided on: the announced bytes are
read by whoever knows where to put them.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from laggard.kvstore.values.decoding import Buffer

Message = dict[str, Any]
_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 1 << 20  # beyond any message of ours


def answer_at_once(connection: socket.socket) -> None:
    """Have nothing that is sent over TCP wait until what was sent before has been acknowledged, up to 40 ms later."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(connection: socket.socket, message: Message, *payload: Buffer | bytearray, file: int | None = None) -> None:
    """Send a message, what it announces, and possibly an open file (over a socket of the same machine)."""
    text = json.dumps(message).encode()
    framed = _LENGTH.pack(len(text)) + text
    if file is None:
        connection.sendall(framed)
    else:
        sent = socket.send_fds(connection, [framed], [file])
        connection.sendall(framed[sent:])
    for part in payload:
        connection.sendall(part)


def receive(connection: socket.socket) -> Message:
    """Receive a message."""
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    return _parse(length, connection)


def receive_with_file(connection: socket.socket) -> tuple[Message, int | None]:
    """Receive a message, and the file that was sent with it."""
    head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 1, socket.MSG_CMSG_CLOEXEC)
    head += receive_exactly(connection, _LENGTH.size - len(head))
    (length,) = _LENGTH.unpack(head)
    return _parse(length, connection), next(iter(files), None)


def receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Receive that many bytes."""
    data = bytearray(size_bytes)
    receive_into(connection, memoryview(data))
    return bytes(data)


def receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fill a piece of memory."""
    while target.nbytes:
        count = connection.recv_into(target)
        if count == 0:
            raise ConnectionResetError("the other end has closed the connection")
        target = target[count:]


def _parse(length: int, connection: socket.socket) -> Message:
    if length > _LONGEST_BYTES:
        raise ConnectionError(f"a message of {length} bytes is none of ours")
    try:
        message = json.loads(receive_exactly(connection, length))
    except ValueError as error:
        raise ConnectionError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ConnectionError("a message is not a JSON object")
    return message
