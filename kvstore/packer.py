"""Commands to bytes, for the Redis client: few sends for small arguments, no copy of large ones."""

from __future__ import annotations

__all__ = ["Packer"]

Argument = str | bytes | bytearray | memoryview | int | float

# Below this a command is one send, since each send wakes the server; a larger argument is sent from where it lies.
_IN_PLACE_BYTES = 128 << 10


class Packer:
    """Turns commands into the wire format, a length before every argument; plugs into the client's connections."""

    def pack(self, *args: Argument) -> list[bytes | memoryview]:
        """Pack one command, whose first argument may be several words."""
        words = str(args[0]).split() if isinstance(args[0], str) else [args[0]]
        arguments = (*words, *args[1:])
        output: list[bytes | memoryview] = []
        small: list[bytes | bytearray | memoryview] = [b"*%d\r\n" % len(arguments)]
        for argument in arguments:
            data = _encode(argument)
            small.append(b"$%d\r\n" % len(data))
            if len(data) < _IN_PLACE_BYTES:
                small.append(data)
            else:
                output += b"".join(small), memoryview(data)
                small = []
            small.append(b"\r\n")
        output.append(b"".join(small))
        return output


def _encode(argument: Argument) -> bytes | bytearray | memoryview:
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, (bytes, bytearray, memoryview)):
        return argument
    if isinstance(argument, bool) or not isinstance(argument, (int, float)):
        raise TypeError(f"a {type(argument).__name__} is no argument of a command; use text, bytes or a number")
    return repr(argument).encode()
