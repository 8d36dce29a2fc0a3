"""CollectorGroup: a test that runs on every device (or node) at a fixed rate and stores its readings as samples."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from laggard.collectors.device import Device, device_makers
from laggard.collectors.errors import NoDeviceError
from laggard.collectors.probe_schedule import JITTER, ProbeSchedule
from laggard.collectors.ray_actors import NodeActors, start_on_every_node
from laggard.kvstore.client.common_clock import CommonClock
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, NodeRecord
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.kvstore.series.streams import Sample, Series
from laggard.settings import number
from laggard.telemetry.sending.sender import Telemetry

_log = logging.getLogger("laggard.collectors")

STRIDE = "stride"  # the tag of a device that skips rounds: how many intervals apart its samples are
ERROR = "error"  # the tag of a sample without a reading: why there is none
MAX_ERROR = 300
# All devices are tested at one moment, and the state server takes their samples one after the other.
SEND_S = 50e-6
SENT_WITHIN = 2 * JITTER  # of the interval
_TELEMETRY_TAGS = ("rank", "gpu", "process")  # of which a sample has one there, the first
_current = threading.local()


class Startable(ABC):
    """Something that is started and stopped, or used as a context manager."""

    @abstractmethod
    def start(self) -> Self:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it. Stopping twice does nothing."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def checked_rate(collection_rate: float) -> float:
    """Return the seconds from one sample to the next, if they are more than none."""
    if not number(collection_rate) > 0:
        raise ValueError(f"collection_rate is {collection_rate!r} s: it must be above 0")
    return collection_rate


class CollectorGroup(Startable):
    """Runs :meth:`collector_test` on every device of the launch, every ``collection_rate`` seconds.

    All devices are tested at one moment, since a program whose ranks wait for each other then waits once. It is early
    or late by up to 20 % of the interval, at random, so that it does not stay in step with a periodic disturbance.

    Write a subclass, then ``start()`` it in the program or use it as a context manager. One collector process per node
    serves all devices of the node, with one thread each, so a stalled device does not delay the others. The instance
    is sent to the nodes with its plain attributes; those whose names begin with an underscore are not sent.

    Attributes
    ----------
    metric_name
        The metric under which the readings are stored, with the tags ``host``, ``gpu``, ``model`` and ``uuid``.
    per_gpu
        Whether the test runs on each device, or once on each node (then with the tag ``host`` alone).
    repeats
        How many times the test runs for one sample.

    Parameters
    ----------
    collection_rate
        Seconds from one sample to the next.
    collector_args
        Passed to each call of the test.
    """

    metric_name: str
    per_gpu: ClassVar[bool] = True
    repeats: int = 1
    _collectors: NodeActors | NodeCollector | None = None

    def __init__(self, collection_rate: float = 3.0, collector_args: Any = None) -> None:
        self.collection_rate = checked_rate(collection_rate)
        self.collector_args = collector_args

    @abstractmethod
    def collector_test(self, args: Any) -> float:
        """Return one reading; ``self.device`` is the device to test."""

    def read(self) -> list[float]:
        """Return one round's readings: those of :meth:`collector_test`."""
        return [self.collector_test(self.collector_args) for _ in range(self.repeats)]

    def stride(self) -> int:
        """Return how many intervals apart this device's rounds must be: 1 unless the test costs too much."""
        return 1

    def sample_tags(self) -> Mapping[str, str]:
        """Return additional tags for the sample that was just read; none unless a subclass has some."""
        return {}

    @property
    def device(self) -> Device:
        """The device to test; only available inside the tests of a per-GPU group."""
        return _current.device  # type: ignore[no-any-return]

    def start(self) -> Self:
        """Start a collector on every node of this launch; if the test is per GPU, on every node that has devices.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        NoDeviceError
            If the test is per GPU and no node has a device.
        """
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        nodes = [node for node in launch.nodes if node.devices or not self.per_gpu]
        if not nodes:
            raise NoDeviceError(in_job=True)
        self._collectors = self._place(nodes)
        return self

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        """Start the collectors of these nodes."""
        return start_on_every_node(nodes, NodeCollector, self.for_nodes())

    def for_nodes(self) -> CollectorGroup:
        """Return the group that is sent to the nodes: this one, unless a subclass leaves the test to another."""
        return self

    def stop(self) -> None:
        """Stop the collectors. Stopping twice does nothing."""
        if self._collectors is not None:
            self._collectors.stop()
            self._collectors = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class NodeCollector:
    """The collector process of one node."""

    def __init__(self, group: CollectorGroup) -> None:
        self._writer = SampleWriter()
        session = current_session()
        self._clock = CommonClock(session.client)
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        n_samples = sum(max(1, len(node.devices)) for node in launch.nodes)
        self._sent_within_s = min(n_samples * SEND_S, SENT_WITHIN * group.collection_rate)
        self._group = group
        self._ended = threading.Event()
        makers: Mapping[str, Callable[[], Device | None]] = device_makers() if group.per_gpu else {"node": lambda: None}
        for name, make in makers.items():
            threading.Thread(target=self._collect, args=(name, make), name=f"collector-{name}", daemon=True).start()

    def stop(self) -> None:
        """Stop after the reading that is under way, if any."""
        self._ended.set()

    def _collect(self, name: str, make: Callable[[], Device | None]) -> None:
        try:
            collector = DeviceCollector(self._group, make(), self._clock.now_s)
        except Exception as error:  # noqa: BLE001 - a driver or its library may raise anything; the other devices go on
            _log.exception("gpu %s cannot be tested; the others are tested", name)
            tags = {"host": current_session().environment.node, "gpu": name, ERROR: in_a_line(error)}
            self._writer.write([Sample(self._group.metric_name, time.time(), (float("nan"),), tags)])
            return
        while not self._ended.wait(collector.wait_s()):
            sample = collector.collect()
            if self._ended.wait(random.uniform(0, self._sent_within_s)) or not self._writer.write([sample]):
                return
            self._clock.measure_if_due()


class DeviceCollector:
    """Runs a group's test on one device, whenever a round is due."""

    def __init__(self, group: CollectorGroup, device: Device | None, clock: Callable[[], float]) -> None:
        self._group = group  # the group whose test to run
        self._device = device  # the device to test; `None` for a test of the whole node
        self._clock = clock  # the clock that all devices of the job share
        environment = current_session().environment
        self.host = environment.node
        self._tags = {"host": self.host} | (_tags_of(device) if device else {})
        seed = f"{group.metric_name} {environment.launch}"
        self._schedule = ProbeSchedule(group.collection_rate, clock(), seed)
        self._stride = 1

    def wait_s(self) -> float:
        """Return the seconds until the next round."""
        return self._schedule.wait_s(self._clock())

    def collect(self) -> Sample:
        """Run the test; return its sample, with NaN as the value if the test failed."""
        group = self._group
        _current.device = self._device
        tags = self._tags
        try:
            with self._device.current() if self._device else contextlib.nullcontext():
                readings = [float(value) for value in group.read()]
                tags = {**tags, **group.sample_tags()}
                self._stride = group.stride()
        except Exception as error:  # noqa: BLE001 - a user's test may raise anything; a failed reading is not a missing one
            _log.exception("the test of %s failed on %s", group.metric_name, tags)
            readings = [float("nan")]
            tags = {**tags, ERROR: in_a_line(error)}
        if self._stride > 1:
            tags = tags | {STRIDE: str(self._stride)}
        self._schedule.advance(self._clock(), self._stride)
        return Sample(group.metric_name, time.time(), tuple(readings), tags)


class SampleWriter:
    """Stores collectors' samples: for detectors in the state server, for people in the telemetry."""

    def __init__(self) -> None:
        session = current_session()
        self._series = Series(session.client, session.endpoint, session.environment.launch)
        self._telemetry = Telemetry()

    def tell(self, samples: Sequence[Sample]) -> None:
        """Add samples to the telemetry only."""
        for sample in samples:
            key = next((name for name in _TELEMETRY_TAGS if name in sample.tags), None)
            self._telemetry.add_data(sample.metric, min(sample.values), tagk=key, tagv=sample.tags.get(key or ""))

    def write(self, samples: Sequence[Sample]) -> bool:
        """Store samples; return whether to go on: False once this launch is over."""
        self.tell(samples)
        try:
            self._series.add(samples)
        except FencedError:
            return False
        except KVStoreError as error:
            _log.warning("%d samples of %s were dropped: %s", len(samples), samples[0].tags, error)
        return True


def in_a_line(error: BaseException) -> str:
    """Return an error as the last line of its traceback has it, for a notice to the user."""
    # An error of a user's may have any name and text, or none: that of a path may hold bytes that are no text.
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        said = type(error).__name__
    return " ".join(said.encode(errors="replace").decode().split())[:MAX_ERROR]


def _tags_of(device: Device) -> dict[str, str]:
    tags = {"gpu": device.gpu, "model": device.model, "uuid": device.uuid}
    return {name: value for name, value in tags.items() if value}
