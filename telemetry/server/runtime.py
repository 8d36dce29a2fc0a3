"""Running the server, for a running job or for dumps of one that has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import redis
import uvicorn

from laggard.kvstore.client.connection import Session, write_private
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.error_lines import lines_since
from laggard.telemetry.errors import TelemetryServerError
from laggard.telemetry.events import EventLog, events_of_series
from laggard.telemetry.nodes.bus import Listener, NodeAsker
from laggard.telemetry.nodes.notices import tell_if_restarted
from laggard.telemetry.nodes.sources import LocalSource, NodesSource
from laggard.telemetry.nodes.watch import NodeWatch
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.sending.batches import Batch, socket_name
from laggard.telemetry.sending.sender import BatchSocket
from laggard.telemetry.server.app import make_app
from laggard.telemetry.server.handlers import Reach, Service
from laggard.telemetry.server.job import FollowedJob
from laggard.telemetry.server.lost import lost_answerer
from laggard.telemetry.server.protocol import BoundedProtocol
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.rollups import ROLLUPS, Rollups
from laggard.telemetry.store.tiers import WINDOWS_S

LOOPBACK = "127.0.0.1"
TOKEN_FILE = "telemetry-token"  # noqa: S105 - the name of a file
KEEP_INTERVAL_S = 1.0
KEEP_ALIVE_S = 75
STOP_DEADLINE_S = 3
DUMP_DEADLINE_S = 10.0
BACKLOG = 128
# Most answers fit into it, so that they are handed to the kernel at once instead of being buffered and copied.
SEND_BUFFER_BYTES = 1 << 20


def serve_job(session: Session, settings: TelemetrySettings, port: int) -> None:
    """Serve a job's telemetry until a pipe at standard input closes or a signal arrives."""
    # The token for requests that change something is in the file `telemetry-token` beside the endpoint file.
    directory = session.environment.endpoint_file.parent
    endpoint = session.endpoint
    events = EventLog(session.client, endpoint)
    job = FollowedJob(session, events)
    asker = NodeAsker(session.client, endpoint, settings.query_deadline)
    watch = NodeWatch(asker, job.nodes_ever)
    rollups = Rollups(WINDOWS_S, max_bytes=settings.primary_megabytes << 20, clock=time.time)
    store, store_lock = BatchSocket(directory / socket_name(session.environment.node)), threading.Lock()

    def put(batch: Batch) -> bool:
        with store_lock:
            return store.send(batch) or store.send(batch)  # the first may find it closed

    service = Service(
        reach=lambda: job.reach(watch),
        source=NodesSource(asker, rollups, job.nodes, lambda: job.missing(watch.health())),
        events=events.between,
        put=put,
        token=_token(directory),
        reading_needs_token=settings.reading_needs_token,
        names=_names(settings),
        health=lambda: job.health(watch),
        error_lines=lambda start_us: lines_since(session.client, endpoint, start_us),
        own_metrics=lambda: job.own_metrics(watch),
        began_s=session.environment.began_s,
    )

    def keep() -> None:
        rollups.history.tiers.trim()
        job.update()

    tell_if_restarted(session, TOKEN_FILE, "the telemetry server begins anew; it has what the nodes still have")
    with (
        Listener(session.client, [endpoint.key(ROLLUPS)], rollups.take),
        lost_answerer(session, rollups, asker, settings.dump_dir),
        _repeated(keep),
        watch,
    ):
        _serve(service, settings, port)


def serve_dump(paths: Sequence[Path], settings: TelemetrySettings, port: int) -> None:
    """Serve dumps as if their job were still running, until a pipe at standard input closes or a signal arrives."""
    history = read_dump(paths)
    size, span_us = history.samples.size(), history.span_us()
    all_events = events_of_series(history.samples.read([EVENTS], 0, ALL_TIME_US))
    reach = _reach_of_dump(span_us or (0, 0), ", ".join(path.name for path in paths))
    first = "" if span_us is None else f", the first at {time.ctime(span_us[0] / SECOND_US)}"
    sys.stdout.write(f"{size.samples} samples of {len(history.series_keys())} series{first}\n")
    service = Service(
        reach=lambda: reach,
        source=LocalSource(history, DUMP_DEADLINE_S),
        events=lambda start_us, end_us: [event for event in all_events if start_us <= event.time_us <= end_us],
        put=None,
        token=secrets.token_hex(32),
        reading_needs_token=False,
        names=_names(settings),
        health=lambda: {"status": "ok", "samples": size.samples},
        error_lines=lambda _: [],
        own_metrics=list,
    )
    _serve(service, settings, port)


def _serve(service: Service, settings: TelemetrySettings, port: int) -> None:
    with _bound(port) as listener:
        chosen = listener.getsockname()[1]
        config = uvicorn.Config(
            make_app(service),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_DEADLINE_S,
        )
        server = uvicorn.Server(config)
        threading.Thread(target=_end_with_input, args=(server,), name="stdin", daemon=True).start()

        async def serve() -> None:  # who reads this may interrupt it: by now that is expected
            sys.stdout.write(f"telemetry at http://{LOOPBACK}:{chosen}\n")
            sys.stdout.write(f"ssh command: {settings.tunnel_command(chosen)}\n")
            sys.stdout.flush()
            await server.serve(sockets=[listener])

        asyncio.run(serve())


def _end_with_input(server: uvicorn.Server) -> None:
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return  # not a pipe; a terminal would stop a background process that reads from it
    while os.read(sys.stdin.fileno(), 4096):
        continue
    server.should_exit = True


def _bound(port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is explicit; else the end of an answer may be delayed by 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise TelemetryServerError(port, f"{error.strerror}; choose another port") from error
    return listener


def _names(settings: TelemetrySettings) -> frozenset[str]:
    listed = [name.strip() for name in settings.server_names.split(",")]
    return frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn(), *listed) if name)


def _token(directory: Path) -> str:
    path = directory / TOKEN_FILE
    if not path.exists():
        write_private(path, secrets.token_hex(32))
    return path.read_text(encoding="utf-8").strip()


def _reach_of_dump(span_us: tuple[int, int], name: str) -> Reach:
    began_us, newest_us = span_us
    return Reach(name, began_us, newest_us, newest_us)


@contextlib.contextmanager
def _repeated(action: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(KEEP_INTERVAL_S):
            with contextlib.suppress(redis.RedisError):  # requests report it; this is retried in a second
                action()

    thread = threading.Thread(target=repeat, name="telemetry-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STOP_DEADLINE_S)
