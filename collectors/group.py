"""CollectorGroup: a test that runs on every device (or node) at a fixed rate, its readings stored as samples."""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from collectors.device import Device, DeviceError, local_devices
from collectors.placement import NodeActors, start_on_every_node
from kvstore.control import Control, NodeRecord
from kvstore.errors import FencedError, KVStoreError
from kvstore.series import Sample, Series
from kvstore.session import current_session
from telemetry.sender import Telemetry

__all__ = ["CollectorGroup", "NodeCollector", "jittered"]

_log = logging.getLogger("laggard.collectors")

JITTER = 0.2
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
        session = current_session()
        self._series = Series(session.client, session.endpoint, session.environment.launch)
        self._telemetry = Telemetry()
        self._group = group
        self._host = session.environment.node
        self._ended = threading.Event()
        devices: Sequence[Device | None] = local_devices() if group.per_gpu else [None]
        for device in devices:
            name = f"collector-{device.gpu if device else self._host}"
            threading.Thread(target=self._collect, args=(device,), name=name, daemon=True).start()

    def stop(self) -> None:
        """Collect no more; a reading that was begun is the last."""
        self._ended.set()

    def _collect(self, device: Device | None) -> None:
        tags = {"host": self._host} | (_tags_of(device) if device else {})
        _current.device = device
        due_s = time.monotonic()
        while not self._ended.wait(max(0.0, jittered(due_s, self._group.collection_rate) - time.monotonic())):
            due_s = max(due_s + self._group.collection_rate, time.monotonic())
            values, more_tags = self._read(tags)
            gpu = ("gpu", device.gpu) if device else (None, None)
            self._telemetry.add_data(self._group.metric_name, min(values), tagk=gpu[0], tagv=gpu[1])
            try:
                self._series.add([Sample(self._group.metric_name, time.time(), values, {**tags, **more_tags})])
            except FencedError:
                return  # this launch is over
            except KVStoreError as error:
                _log.warning("a sample of %s was dropped: %s", tags, error)

    def _read(self, tags: dict[str, str]) -> tuple[tuple[float, ...], Mapping[str, str]]:
        group = self._group
        try:
            return tuple(group.collector_test(group.collector_args) for _ in range(group.repeats)), group.sample_tags()
        except Exception:  # noqa: BLE001 - a user's test may raise anything; a failed reading is not an absent one
            _log.exception("the test of %s failed on %s", self._group.metric_name, tags)
            return (float("nan"),), {}


def jittered(due_s: float, interval_s: float) -> float:
    """Return a time near the one that is due: the devices' rounds stay together, their readings do not."""
    return due_s + random.uniform(-JITTER, JITTER) * interval_s


def _tags_of(device: Device) -> dict[str, str]:
    tags = {"gpu": device.gpu, "model": device.model, "uuid": device.uuid}
    return {name: value for name, value in tags.items() if value}
