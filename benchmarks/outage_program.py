"""The program of the benchmark ``outages``: needs one thing from outside, and ends when that says so.

It prints the Unix time of each start. What it raises is what well-known libraries raise.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from laggard import Job

PAUSE_S = 0.2


def use_named_service(where: str) -> bytes:
    """Read a word from a service; asyncio's error names it."""

    async def read() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(where))
        word = await reader.readexactly(4)
        writer.close()
        return word

    return asyncio.run(read())


def stay_connected(where: str) -> bytes:
    """Read words from a service as long as it is there; no error names it."""
    address = ("127.0.0.1", int(where))
    with socket.create_connection(address) as service:
        while (word := service.recv(4)) == b"wait":
            pass
    if not word:
        raise ConnectionResetError("the service has hung up")
    return word


def use_http(where: str) -> bytes:
    """Read a page."""
    url = f"http://127.0.0.1:{where}/word"
    try:
        with urllib.request.urlopen(url) as page:
            word: bytes = page.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{error.code} Server Error: {error.reason} for url: {url}") from None
    return word


def resolve(where: str) -> bytes:
    """Look a name up."""
    try:
        return {"127.0.0.8": b"stop"}.get(socket.gethostbyname(where), b"wait")
    except socket.gaierror as error:
        raise OSError(f'could not translate host name "{where}" to address: {error}') from None


def read_file(where: str) -> bytes:
    """Read a file of a mount."""
    return Path(where).read_bytes()


def meet(where: str) -> bytes:
    """Meet at a store of PyTorch's, as ranks do that are told one."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", int(where), is_master=False, timeout=timedelta(seconds=5))
    word: bytes = store.get("word")
    return word


NEEDS = {
    each.__name__: each for each in (use_named_service, stay_connected, use_http, resolve, read_file, meet)
}  # fmt: skip


def main(need: str, where: str) -> None:
    """Use what is needed until it says ``stop``."""
    print("begins", time.time(), flush=True)
    Job.current().progress(1)
    while NEEDS[need](where) != b"stop":
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
