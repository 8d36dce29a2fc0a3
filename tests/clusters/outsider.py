"""What a user of another machine does to a job's ports: ``outsider.py SECONDS SPARED ADDRESS ...``; no imports of ours.

It finds every open port of each address, and holds connections to all of them after two bytes; but those spared, such
as ``22,80``. What it is about to do is printed, with the ports by address, and how many connections came about.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import selectors
import socket
import sys
import time
from typing import cast

AT_ONCE = 500
HELD = 30
ANSWER_S = 1.0
PORTS = range(1, 65536)


def open_ports(address: str) -> list[int]:
    """Return the ports on which something listens."""
    found: list[int] = []
    left = iter(PORTS)
    selector = selectors.DefaultSelector()
    asked: dict[socket.socket, tuple[int, float]] = {}

    def close(asking: socket.socket) -> None:
        del asked[asking]
        selector.unregister(asking)
        asking.close()

    while True:
        while len(asked) < AT_ONCE and (port := next(left, None)) is not None:
            asking = socket.socket()
            asking.settimeout(0.0)
            asking.connect_ex((address, port))
            asked[asking] = port, time.monotonic() + ANSWER_S
            selector.register(asking, selectors.EVENT_WRITE)
        if not asked:
            return sorted(found)
        for key, _ in selector.select(ANSWER_S):
            asking = cast("socket.socket", key.fileobj)
            if asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(asked[asking][0])
            close(asking)
        for asking in [each for each, (_, until_s) in asked.items() if until_s < time.monotonic()]:
            close(asking)


def hold(address: str, port: int, until_s: float) -> int:
    """Hold connections that have sent two bytes, and open those again that are closed; return how many there were."""
    n_begun = 0
    with contextlib.ExitStack() as stack:
        while time.monotonic() < until_s:
            held: list[socket.socket] = []
            while len(held) < HELD and time.monotonic() < until_s:
                if (begun := _begin(address, port)) is not None:
                    held.append(stack.enter_context(begun))
            n_begun += len(held)
            for connection in held:
                connection.settimeout(max(0.01, min(3.0, until_s - time.monotonic())))
                with contextlib.suppress(OSError):
                    while connection.recv(1 << 16):
                        pass
            stack.close()
    return n_begun


def _begin(address: str, port: int) -> socket.socket | None:
    try:
        connection = socket.create_connection((address, port), ANSWER_S)
        connection.sendall(b"sl")
    except OSError:
        return None
    return connection


def main(seconds: float, spared: set[int], addresses: list[str]) -> None:
    print(json.dumps({"attack": "scan"}), flush=True)
    ports = {address: [port for port in open_ports(address) if port not in spared] for address in addresses}
    places = [(address, port) for address, found in ports.items() for port in found]
    print(json.dumps({"attack": "hold", "ports": ports}), flush=True)
    until_s = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(len(places)) as threads:
        counts = [threads.submit(hold, *place, until_s) for place in places]
    begun = [(*place, count.result()) for place, count in zip(places, counts, strict=True)]
    print(json.dumps({"ended": "hold", "begun": begun}), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), {int(port) for port in sys.argv[2].split(",")}, sys.argv[3:])
