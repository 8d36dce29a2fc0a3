"""A port has room for some connections that have not proved themselves; in a full room the oldest makes place."""

from __future__ import annotations

import errno
import socket
from typing import Any, cast

from laggard.system.unproven import Unproven, accepted, shut_down


def test_in_a_full_room_the_oldest_makes_place() -> None:
    dropped: list[str] = []
    room = Unproven[str](dropped.append, 2)
    for each in ("first", "second", "third"):
        room.add(each)
    assert dropped == ["first"]
    assert len(room) == 2
    assert "first" not in room
    assert "third" in room


def test_who_has_proved_itself_is_never_dropped() -> None:
    dropped: list[str] = []
    room = Unproven[str](dropped.append, 1)
    with room.holding("first"):
        pass
    room.add("second")
    room.remove("second")
    room.add("third")
    assert room.drop_oldest()
    assert not room.drop_oldest()
    assert dropped == ["third"]


def test_a_connection_that_was_dropped_ends_at_both_ends() -> None:
    room = Unproven[socket.socket](shut_down, 1)
    (oldest, its_end), (newer, other_end) = socket.socketpair(), socket.socketpair()
    with oldest, its_end, newer, other_end, room.holding(oldest):
        with room.holding(newer):
            assert its_end.recv(1) == oldest.recv(1) == b""
        newer.sendall(b"x")
        assert other_end.recv(1) == b"x"


class Listener:
    """Has no descriptor left at first, then a connection, and is closed."""

    def __init__(self) -> None:
        self._results = [OSError(errno.EMFILE, "too many open files"), ("a connection", "an address")]

    def accept(self) -> Any:
        if not self._results:
            raise OSError(errno.EBADF, "closed")
        match self._results.pop(0):
            case OSError() as error:
                raise error
            case found:
                return found

    def fileno(self) -> int:
        return 5 if self._results else -1


def test_a_listener_goes_on_where_no_descriptor_is_left_for_a_moment_and_ends_when_it_is_closed() -> None:
    found: list[Any] = list(accepted(cast("socket.socket", Listener())))
    assert found == [("a connection", "an address")]
