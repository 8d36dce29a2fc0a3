"""The telemetry: a monitor on each node, a shared queue, and a process that post-processes what arrives."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import ray
from ray.util.queue import Queue

from laggard import NodeRecord, device_readers, node_strategy

__all__ = ["Bars", "Lines", "NodeReading", "watched"]

INTERVAL_S = 1.0
SILENCE_S = 60.0
STOP_DEADLINE_S = 30.0


class NodeReading(NamedTuple):
    """What a monitor read: its node's load, and the utilization of each device in percent."""

    host: str
    load_average: float
    utilization: dict[str, float]


class Monitor:
    """Monitors one node."""

    def __init__(self, node: NodeRecord) -> None:
        self._host = node.hostname
        self._devices = device_readers(node.devices, on_xid=lambda *_: None)
        self._ended = threading.Event()

    def watch(self, queue: Queue) -> None:
        """Put a reading into the queue every second until stopped, a message before and after, and finally None."""
        queue.put(f"This is a telemetry process on node {self._host}.")
        while not self._ended.wait(INTERVAL_S):
            queue.put(self._read())
        queue.put(f"Telemetry process on node {self._host} exiting ...")
        queue.put(None)

    def stop(self) -> None:
        """Stop monitoring."""
        self._ended.set()

    def _read(self) -> NodeReading:
        readings = {device.gpu: {each.metric: each.value for each in device.read()} for device in self._devices}
        busy = {gpu: found["DeviceUtilization"] for gpu, found in readings.items() if "DeviceUtilization" in found}
        return NodeReading(self._host, os.getloadavg()[0], busy)


@ray.remote(num_cpus=0, num_returns="streaming")
def post_process(queue: Queue, n_monitors: int) -> Iterator[NodeReading | str]:
    """Yield what the monitors send, with rounded readings, until the last one has ended."""
    yield f"This is the postprocessing process, {os.environ['LAGGARD_NODE']}."
    while n_monitors:
        match queue.get(timeout=SILENCE_S):
            case None:
                n_monitors -= 1
            case NodeReading(host, load_average, utilization):
                yield NodeReading(host, round(load_average, 2), {gpu: round(u, 2) for gpu, u in utilization.items()})
            case sentence:
                yield sentence


@contextmanager
def watched(nodes: Sequence[NodeRecord], view: Lines | Bars) -> Iterator[None]:
    """Show what happens on the nodes while the ``with`` block is active."""
    queue = Queue(actor_options={"num_cpus": 0})
    remote: Any = ray.remote(Monitor)
    apart = {"num_cpus": 0, "max_concurrency": 2}  # stop() comes while watch() runs
    monitors = [remote.options(scheduling_strategy=node_strategy(node), **apart).remote(node) for node in nodes]
    for monitor in monitors:
        monitor.watch.remote(queue)
    stream = post_process.remote(queue, len(monitors))
    viewer = threading.Thread(target=_follow, args=(stream, view), daemon=True)
    viewer.start()
    try:
        yield
    finally:
        view.say("Shutting down procs")
        ray.get([monitor.stop.remote() for monitor in monitors], timeout=STOP_DEADLINE_S)
        viewer.join(STOP_DEADLINE_S)


def _follow(stream: Iterator[Any], view: Lines | Bars) -> None:
    """Show what the post-processing process yields, until it ends."""
    for reference in stream:
        match ray.get(reference):
            case NodeReading() as reading:
                view.show(reading)
            case sentence:
                view.say(sentence)
    view.say("Post process is exiting")
    view.close()


class Lines:
    """Prints one line per reading."""

    def show(self, reading: NodeReading) -> None:
        """Print a reading."""
        devices = "".join(f" device # {gpu} utilization: {busy:.2f}%" for gpu, busy in reading.utilization.items())
        self.say(f"nodename: {reading.host} cpu load average 1 minute: {reading.load_average}{devices}")

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        print(sentence, flush=True)

    def close(self) -> None:
        """Do nothing: lines need no end."""


class Bars:
    """A bar for each node's load and for each device, redrawn as readings come."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._new_bar = tqdm
        self._bars: dict[str, Any] = {}

    def show(self, reading: NodeReading) -> None:
        """Draw a reading."""
        self._draw(f"{reading.host} cpu load avg.", reading.load_average)
        for gpu, busy in reading.utilization.items():
            self._draw(f"{reading.host} device {gpu} util", busy)

    def say(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        self._new_bar.write(sentence)

    def close(self) -> None:
        """Leave the bars as they are."""
        for bar in self._bars.values():
            bar.close()

    def _draw(self, name: str, value: float) -> None:
        if name not in self._bars:
            looks = "{l_bar}{bar}| {n:g}/100"
            self._bars[name] = self._new_bar(total=100, desc=name, position=len(self._bars), bar_format=looks)
        self._bars[name].n = value
        self._bars[name].refresh()
