"""``python -m laggard.collectors.metrics.process``: one node's telemetry, for as long as the job runs.

It stores the node's samples, answers queries for them, and reads metrics according to the job's telemetry level: the
node from level 2, its devices from level 3, and at level 4 also itself and the devices' processes. It belongs to the
job, not to one launch, and ends when its standard input closes or on SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

import redis

from laggard.collectors.metrics.gpu import DeviceReader, device_readers
from laggard.collectors.metrics.node import NodeReader, control_group_of
from laggard.collectors.metrics.reading_loop import Reading, ReadingLoop
from laggard.collectors.silences import Silences
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import LAUNCH, JobEnvironment
from laggard.kvstore.errors import KVStoreError
from laggard.logs import configure_logging
from laggard.telemetry.errors import SettingsError
from laggard.telemetry.events import Event, EventLog
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.settings import TelemetrySettings, job_settings

_log = logging.getLogger("laggard.collectors")

PROCESSES_INTERVAL_S = 5.0
# A reading that takes longer than this is reported: something is wrong with the device or its driver.
STALL_S = 5.0
# A question is answered beside samples that arrive all the time: it waits this long for its turn instead of 5 ms.
SWITCH_INTERVAL_S = 0.0005
WATCH_INTERVAL_S = 1.0
# glibc gives threads heaps of their own, up to eight for each processor, and what is free in one is of no use to the
# others: with a thread for each process that sends, the node would take up to twice the memory.
_M_ARENA_MAX, _HEAPS = -8, 2


class Collectors:
    """Everything that reads on one node, for as long as the ``with`` block lasts."""

    def __init__(
        self,
        telemetry: NodeTelemetry,
        environment: JobEnvironment,
        settings: TelemetrySettings,
        report_event: Callable[[Event], None],
        environ: Mapping[str, str] = os.environ,
        readers: Callable[..., Sequence[DeviceReader]] = device_readers,
        loop: type[ReadingLoop] = ReadingLoop,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._readers = readers  # opens the devices
        self._loop = loop  # reads one thing
        self._clock = clock
        self._unix_clock = unix_clock
        self._telemetry = telemetry  # where the node's samples are stored
        self._host = environment.node
        self._level = environment.telemetry_level
        self._interval_s = settings.collector_rate
        self._report_event = report_event  # called with each event of a device
        self._environ = environ  # says which devices the job has
        self._silences = Silences()
        self.loops: list[ReadingLoop] = []

    def __enter__(self) -> Collectors:
        if self._level >= 2:
            self._add("node", NodeReader(control_group=control_group_of()).read, self._interval_s)
        if self._level >= 3:
            names = [name for name in self._environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            for device in self._readers(names or None, self._on_xid, self._environ):
                self._add_device(device)
        if self._level >= 4:
            self._add("itself", self._itself, self._interval_s)
        for loop in self.loops:
            loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.stop()

    def watch(self) -> None:
        """Report readings that have stalled, and those that have resumed; not each that comes and goes."""
        now_s = self._clock()
        loops = {(self._host, loop.name): loop for loop in self.loops}
        paces = {key: loop.pace.begun_s for key, loop in loops.items()}
        stalled = [key for key, begun_s in paces.items() if begun_s is not None and now_s - begun_s > STALL_S]
        both = f"has not answered for more than {STALL_S:g} s", "answers again"
        for keys, words in zip(self._silences.see(stalled, now_s), both, strict=True):
            for key in keys:
                self._on_event("stall", f"{loops[key].name} {words}", loops[key].tags.get("gpu", ""))

    def _add(self, name: str, read: Callable[[], Iterator[Reading]], interval_s: float, gpu: str = "") -> None:
        tags = {"host": self._host} | ({"gpu": gpu} if gpu else {})
        place = len(self.loops)
        self.loops.append(self._loop(name, read, interval_s, self._telemetry.store, tags, place=place))

    def _add_device(self, device: DeviceReader) -> None:
        self._add(f"gpu {device.gpu}", device.read, self._interval_s, device.gpu)
        if self._level >= 4:
            self._add(f"processes of gpu {device.gpu}", device.processes, PROCESSES_INTERVAL_S, device.gpu)

    def _itself(self) -> Iterator[Reading]:
        size = self._telemetry.store.size()
        yield Reading("db_size", size.nbytes / 1e6)
        yield Reading("telemetry_samples", size.samples)
        yield Reading("telemetry_series", size.series)
        yield Reading("telemetry_dropped", size.dropped)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Reading("collector_cpu", round(usage.ru_utime + usage.ru_stime, 3))
        for loop in self.loops:
            tags = {"reader": loop.name.replace(" ", "-")}
            yield Reading("collector_lag", round(loop.pace.lag_s, 4), tags)
            yield Reading("collector_duration", round(loop.pace.duration_s, 4), tags)
            yield Reading("collector_missed", loop.pace.missed, tags)

    def _on_xid(self, gpu: str, number: int) -> None:
        self._on_event("xid", f"XID {number} on {self._host} gpu {gpu}", gpu)

    def _on_event(self, kind: str, text: str, gpu: str) -> None:
        try:
            self._report_event(Event(round(self._unix_clock() * 1e6), kind, text, self._host, gpu))
        except redis.RedisError as error:
            _log.warning("%s (could not be recorded: %s)", text, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until standard input closes or SIGTERM arrives; an expected failure prints one line."""
    del arguments  # everything is in the environment
    configure_logging()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, which then closes our input
    signal.signal(signal.SIGTERM, _leave)
    os.environ.setdefault(LAUNCH, "0")  # belongs to no launch, so that it is not ended with one
    try:
        session = current_session()
        settings = job_settings(session.environment)
        events = EventLog(session.client, session.endpoint)
        with (
            contextlib.suppress(_Leave),
            NodeTelemetry(session, settings) as telemetry,
            Collectors(telemetry, session.environment, settings, events.add) as collectors,
        ):
            while not _input_closed(WATCH_INTERVAL_S):
                collectors.watch()
    except (KVStoreError, SettingsError, OSError, redis.RedisError) as error:
        sys.stderr.write(f"node agent: {error}\n")
        return 1
    return 0


class _Leave(Exception):  # noqa: N818 - a request
    """SIGTERM came."""


def _leave(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Leave


def _input_closed(wait_s: float) -> bool:
    with selectors.SelectSelector() as selector:  # unlike epoll it takes any file
        selector.register(sys.stdin, selectors.EVENT_READ)
        return bool(selector.select(wait_s)) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    code = main()
    # A driver that hangs blocks its thread forever; do not wait for it.
    sys.stdout.flush()
    os._exit(code)
