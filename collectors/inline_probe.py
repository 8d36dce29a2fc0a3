"""Inline probes: the program runs them itself, at points where its device is free."""

from __future__ import annotations

import queue
import threading

from laggard.collectors.device import Device, local_device
from laggard.collectors.group import CollectorGroup, DeviceCollector, SampleWriter
from laggard.kvstore.client.common_clock import CommonClock
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.errors import NotInJobError
from laggard.kvstore.series.streams import Sample

# Samples queue while the state server does not answer; the program must not wait for it.
MAX_QUEUED = 100


class InlineProbe:
    """Runs a group's test on this process's device, whenever a round is due and the program calls.

    Outside a job it does nothing.

    Parameters
    ----------
    group
        Whose test; a :class:`laggard.detectors.SlowGPUDetector` with the same settings watches with
        ``inline_probes=True``.
    device
        Which device; ``None``: the one that was assigned to this process.

    Examples
    --------
    >>> probe = InlineProbe(SlowGPUDetector(collection_rate=3))  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     train(batch)
    ...     probe.probe_if_due()
    """

    def __init__(self, group: CollectorGroup, device: Device | None = None) -> None:
        self._queue: queue.Queue[Sample] = queue.Queue(MAX_QUEUED)
        self._collector: DeviceCollector | None = None
        self._device = device
        try:
            self._writer = SampleWriter()
        except NotInJobError:
            return
        self._device = device or local_device()
        self._clock = CommonClock(current_session().client)
        self._collector = DeviceCollector(group.for_nodes(), self._device, self._clock.now_s)
        threading.Thread(target=self._write, name="inline-probe", daemon=True).start()

    def probe_if_due(self) -> bool:
        """Run the test if a round is due; return whether it ran. Call this where the device is free.

        Waits for everything the program has submitted to the device, so that the test has it to itself.
        """
        collector = self._collector
        if collector is None or self._device is None or collector.wait_s() > 0:
            return False
        self._device.wait_until_free()
        sample = collector.collect()
        if not self._queue.full():
            self._queue.put_nowait(sample)
        return True

    def _write(self) -> None:
        while self._writer.write([self._queue.get()]):
            self._clock.measure_if_due()
        self._collector = None  # this launch is over
