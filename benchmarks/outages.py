"""Outages: how soon a job goes on after what its program needs was away, and with how many launches meanwhile.

Each job has two virtual nodes. What it needs is there for ten seconds, away for a while, and then back for good. A name
is away in a mount namespace of the job's own (``unshare``), so that the machine does not notice.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from benchmarks.machine import description
from benchmarks.tables import table
from laggard.system.ports import port_for_later

UP_S = 10.0
GOES_ON_WITHIN_S = 60.0
NAME = "store.benchmark"
NODES = 2
LAGGARD = (sys.executable, "-m", "laggard", "--local-nodes=2", "--nodes=2", "--resilient", "--per-node", "--no-report")
PROGRAM = (sys.executable, str(Path(__file__).with_name("outage_program.py")))
RENDEZVOUS = """
import signal, sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
store.set("word", sys.argv[2])
print("up", flush=True)
signal.pause()
"""
IN_NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")
_BEGINS = re.compile(r"begins ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job; None: it did not end by itself."""

    exit_code: int | None
    goes_on_after_s: float | None  # from the end of the outage to the next start of the program
    launches: int  # that began during the outage
    blamed: bool


class Thing:
    """What a program needs: subclasses can take it away and bring it back."""

    need = ""
    where = ""

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the job's command line, perhaps in a namespace."""
        return command

    def up(self, word: bytes) -> None:
        """Have it there, saying this word."""
        raise NotImplementedError

    def away(self) -> None:
        """Take it away."""
        raise NotImplementedError


class Service(Thing):
    """A TCP service."""

    def __init__(self, need: str) -> None:
        self.need, self.where = need, str(port_for_later())
        self._end = threading.Event()
        self._thread = threading.Thread()

    def up(self, word: bytes) -> None:
        """Listen."""
        self._end.clear()
        self._thread = threading.Thread(target=self._serve, args=(word,))
        self._thread.start()

    def away(self) -> None:
        """Hang up, and refuse connections."""
        self._end.set()
        self._thread.join()

    def _serve(self, word: bytes) -> None:
        with contextlib.ExitStack() as open_, socket.create_server(("127.0.0.1", int(self.where))) as server:
            server.settimeout(0.05)
            while not self._end.is_set():
                with contextlib.suppress(OSError):
                    caller = open_.enter_context(server.accept()[0])
                    caller.sendall(word)


class Web(Thing):
    """An HTTP server, which says that it is unavailable while it is away."""

    need = "use_http"

    def __init__(self) -> None:
        self.word = b""
        server = HTTPServer(("127.0.0.1", 0), partial(_Page, self))
        self.where = str(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def up(self, word: bytes) -> None:
        """Answer."""
        self.word = word

    def away(self) -> None:
        """Answer with 503."""
        self.word = b""


class _Page(BaseHTTPRequestHandler):
    def __init__(self, web: Web, request: socket.socket, address: object, server: socketserver.BaseServer) -> None:
        self._web = web
        super().__init__(request, address, server)

    def do_GET(self) -> None:
        self.send_response(200 if self._web.word else 503)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self._web.word)

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *_: object) -> None: ...


class Name(Thing):
    """A name of ``/etc/hosts``, where the job sees a file of our own."""

    need, where = "resolve", NAME

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"
        self.away()

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command in a namespace with this file."""
        return (*IN_NAMESPACE, 'mount --bind "$0" /etc/hosts && exec "$@"', str(self._file), *command)

    def up(self, word: bytes) -> None:
        """Have the name there."""
        address = "127.0.0.8" if word == b"stop" else "127.0.0.7"
        self._file.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def away(self) -> None:
        """Forget the name."""
        self._file.write_text("127.0.0.1 localhost\n")


class Folder(Thing):
    """A folder that looks as that of a mount does while it is away: empty."""

    need = "read_file"

    def __init__(self, folder: Path) -> None:
        self._file = folder / "mount" / "set" / "word"
        self.where = str(self._file)

    def up(self, word: bytes) -> None:
        """Have the file there."""
        self._file.parent.mkdir(parents=True)
        new = self._file.with_suffix(".new")
        new.write_bytes(word)
        new.rename(self._file)

    def away(self) -> None:
        """Empty the folder."""
        self._file.unlink()
        self._file.parent.rmdir()


class Rendezvous(Thing):
    """A store of PyTorch's, where ranks meet."""

    need = "meet"

    def __init__(self) -> None:
        self.where = str(port_for_later())
        self._server: subprocess.Popen[str] | None = None

    def up(self, word: bytes) -> None:
        """Serve, once PyTorch is loaded."""
        command = (sys.executable, "-c", RENDEZVOUS, self.where, word.decode())
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        next(iter(self._server.stdout or ()), "")  # its word that it is up

    def away(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()


THINGS: dict[str, Callable[[Path], Thing]] = {
    "a TCP service, named": lambda _: Service("use_named_service"),
    "a TCP service, not named": lambda _: Service("stay_connected"),
    "HTTP 503": lambda _: Web(),
    "a name": Name,
    "a mount": Folder,
    "a rendezvous": lambda _: Rendezvous(),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks outages", description=__doc__)
    parser.add_argument(
        "--lengths", type=float, nargs="+", default=[10.0, 30.0, 120.0], metavar="SECONDS", help="(default: 10 30 120)"
    )
    options = parser.parse_args(arguments)
    print(description())
    things = dict(THINGS)
    if subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        del things["a name"]
        print("left out: a name (this user may not make a mount namespace with unshare)")
    if importlib.util.find_spec("torch") is None:
        del things["a rendezvous"]
        print("left out: a rendezvous (PyTorch is not installed)")
    rows = [row for name, make in things.items() for row in _rows(name, make, options.lengths)]
    head = ("away", "for, s", "goes on after, s", "launches meanwhile", "ends with", "a node is blamed")
    print("", *table(head, rows), sep="\n")
    return 0


def _rows(name: str, make: Callable[[Path], Thing], lengths_s: Sequence[float]) -> Iterator[Sequence[object]]:
    with ThreadPoolExecutor(len(lengths_s)) as side_by_side:
        for length_s, outcome in zip(lengths_s, side_by_side.map(partial(_run, make), lengths_s), strict=True):
            after = "-" if outcome.goes_on_after_s is None else f"{outcome.goes_on_after_s:.1f}"
            yield name, f"{length_s:g}", after, outcome.launches, outcome.exit_code, "yes" if outcome.blamed else "no"


def _run(make: Callable[[Path], Thing], length_s: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="laggard-outage-") as folder, contextlib.ExitStack() as last:
        thing = make(Path(folder))
        thing.up(b"wait")
        last.callback(thing.away)
        command = thing.command((*LAGGARD, *PROGRAM, thing.need, thing.where))
        output = Path(folder) / "output"
        with output.open("w") as file:
            job = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)
        last.callback(job.kill)
        until_s = time.monotonic() + GOES_ON_WITHIN_S
        while len(_BEGINS.findall(output.read_text())) < NODES and time.monotonic() < until_s:
            time.sleep(0.1)
        time.sleep(UP_S)
        thing.away()
        began_s = time.time()
        time.sleep(length_s)
        ended_s = time.time()
        thing.up(b"stop")
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(GOES_ON_WITHIN_S)
        text = output.read_text()
        starts_s = sorted(map(float, _BEGINS.findall(text)))
        later = [start_s - ended_s for start_s in starts_s if start_s > ended_s]
        meanwhile = len([start_s for start_s in starts_s if began_s < start_s <= ended_s]) // NODES
        blamed = "followed it" in text or "0 nodes excluded" not in text
        return Outcome(job.poll(), min(later, default=None), meanwhile, blamed)
