"""CollectorGroup: a test that runs on every device (or node) at a fixed rate, its readings stored as samples."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from collectors.device import Device, DeviceError, device_makers
from collectors.placement import NodeActors, start_on_every_node
from collectors.turns import Turns
from kvstore.control import Control, NodeRecord
from kvstore.errors import FencedError, KVStoreError
from kvstore.series import Sample, Series
from kvstore.session import current_session
from telemetry.sender import Telemetry

__all__ = ["APART", "CollectorGroup", "DeviceCollector", "NodeCollector", "SampleWriter"]

_log = logging.getLogger("laggard.collectors")

APART = "turns_apart"  # the tag of a device that does not take each turn
_current = threading.local()


class CollectorGroup(ABC):
    """Runs :meth:`collector_test` on every device of the launch, every ``collection_rate`` seconds.

    Each test is up to 20 % of that early or late, by chance, so that none keeps step with a periodic disturbance.

    Make a subclass, then ``start()`` it in the program, or use it as a context manager. One collector process a node
    serves all of that node's devices, a thread each, so a stalled device stalls no other. Instances are sent to the
    nodes, so keep their attributes plain.

    Attributes
    ----------
    metric_name
        Under which the readings are stored, with the tags ``host``, ``gpu``, ``model`` and ``uuid``.
    per_gpu
        Whether the test runs on each device, or once on each node (then with the tag ``host`` alone).
    repeats
        How often the test runs for one sample.

    Parameters
    ----------
    collection_rate
        Seconds from one sample to the next.
    collector_args
        Given to each call of the test.
    """

    metric_name: ClassVar[str]
    per_gpu: ClassVar[bool] = True
    repeats: ClassVar[int] = 1

    def __init__(self, collection_rate: float = 3.0, collector_args: Any = None) -> None:
        if not collection_rate > 0:
            raise ValueError(f"collection_rate is {collection_rate} s: it must be above 0")
        self.collection_rate = collection_rate
        self.collector_args = collector_args
        self._collectors: NodeActors | NodeCollector | None = None

    @abstractmethod
    def collector_test(self, args: Any) -> float:
        """Return one reading; ``self.device`` is the device to test."""

    def read(self, turn: int) -> Mapping[str, Sequence[float]]:
        """Return the readings of one turn, by metric: those of :meth:`collector_test`, unless a subclass has more."""
        del turn  # each is like the others
        return {self.metric_name: [self.collector_test(self.collector_args) for _ in range(self.repeats)]}

    def turns_apart(self) -> int:
        """Return how many times ``collection_rate`` lies between two turns of this device: 1 unless it costs more."""
        return 1

    def sample_tags(self) -> Mapping[str, str]:
        """Return more tags for the sample that was just read; none unless a subclass has some."""
        return {}

    @property
    def device(self) -> Device:
        """The device that the running test is for; only inside the tests of a per-GPU group."""
        return _current.device  # type: ignore[no-any-return]

    def start(self) -> Self:
        """Start a collector on every node of this launch; a test of devices on those that have some.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        DeviceError
            If it is a test of devices, and there are none.
        """
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        nodes = [node for node in launch.nodes if node.devices or not self.per_gpu]
        if not nodes:
            raise DeviceError("no node of this job has a GPU: --virtual-gpus=K makes K virtual devices a node")
        self._collectors = self._place(nodes)
        return self

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        """Start the collectors of a launch."""
        return start_on_every_node(nodes, NodeCollector, self)

    def stop(self) -> None:
        """End the collectors. Stopping twice does nothing."""
        if self._collectors is not None:
            self._collectors.stop()
            self._collectors = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._collectors = None


class NodeCollector:
    """The collector process of one node."""

    def __init__(self, group: CollectorGroup) -> None:
        self._writer = SampleWriter()
        self._group = group
        self._ended = threading.Event()
        makers: Mapping[str, Callable[[], Device | None]] = device_makers() if group.per_gpu else {"node": lambda: None}
        for name, make in makers.items():
            threading.Thread(target=self._collect, args=(name, make), name=f"collector-{name}", daemon=True).start()

    def stop(self) -> None:
        """Collect no more; a reading that was begun is the last."""
        self._ended.set()

    def _collect(self, name: str, make: Callable[[], Device | None]) -> None:
        try:
            collector = DeviceCollector(self._group, make())
        except RuntimeError:  # CuPy's own are of this kind
            _log.exception("gpu %s cannot be tested; the others are", name)
            return
        while not self._ended.wait(collector.wait_s()):
            if not self._writer.write(collector.collect()):
                return


class DeviceCollector:
    """Runs a group's test on one device, when its turn has come.

    Parameters
    ----------
    group
        Whose test.
    device
        Where; ``None``: on the node.
    """

    def __init__(self, group: CollectorGroup, device: Device | None) -> None:
        self._group = group
        self._device = device
        self.host = current_session().environment.node
        self._tags = {"host": self.host} | (_tags_of(device) if device else {})
        self._turns = Turns(group.collection_rate, time.monotonic())
        self._apart = 1

    def wait_s(self) -> float:
        """Return the seconds until its turn."""
        return self._turns.wait_s(time.monotonic())

    def collect(self) -> list[Sample]:
        """Run the test; return its samples, a failed one with no number in it."""
        group = self._group
        _current.device = self._device
        tags = self._tags
        try:
            readings = group.read(self._turns.number)
            tags = {**tags, **group.sample_tags()}
            self._apart = group.turns_apart()
        except Exception:  # noqa: BLE001 - a user's test may raise anything; a failed reading is not an absent one
            _log.exception("the test of %s failed on %s", group.metric_name, tags)
            readings = {group.metric_name: [float("nan")]}
        if self._apart > 1:
            tags = tags | {APART: str(self._apart)}
        self._turns.taken(time.monotonic(), self._apart)
        now_s = time.time()
        return [Sample(metric, now_s, tuple(values), tags) for metric, values in readings.items()]


class SampleWriter:
    """Where collectors put their samples: detectors find them in the state server, people in the telemetry."""

    def __init__(self) -> None:
        session = current_session()
        self._series = Series(session.client, session.endpoint, session.environment.launch)
        self._telemetry = Telemetry()

    def write(self, samples: Sequence[Sample]) -> bool:
        """Store samples; return whether there may be more: not if this launch is over."""
        for sample in samples:
            tag = ("gpu", sample.tags["gpu"]) if "gpu" in sample.tags else (None, None)
            self._telemetry.add_data(sample.metric, min(sample.values), tagk=tag[0], tagv=tag[1])
        try:
            self._series.add(samples)
        except FencedError:
            return False
        except KVStoreError as error:
            _log.warning("%d samples of %s were dropped: %s", len(samples), samples[0].tags, error)
        return True


def _tags_of(device: Device) -> dict[str, str]:
    tags = {"gpu": device.gpu, "model": device.model, "uuid": device.uuid}
    return {name: value for name, value in tags.items() if value}
