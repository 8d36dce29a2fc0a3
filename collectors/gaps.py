"""Tests in the program's own gaps: where it says that the device is free, nothing shares it with the test."""

from __future__ import annotations

import queue
import threading

from collectors.device import Device, local_device
from collectors.group import CollectorGroup, DeviceCollector, SampleWriter
from kvstore.environment import NotInJobError
from kvstore.series import Sample

__all__ = ["Gaps"]

# As long as the state server does not answer, samples wait; a program that trains is not to.
MOST_WAITING = 100


class Gaps:
    """Runs a group's test on this process's device, when its turn has come and the program says where.

    Outside of a job it does nothing.

    Parameters
    ----------
    group
        Whose test; a :class:`detectors.SlowGPUDetector` with the same settings watches with ``in_gaps=True``.
    device
        Which device; ``None``: the one that was allotted to this process.

    Examples
    --------
    >>> gaps = Gaps(SlowGPUDetector(collection_rate=3))  # doctest: +SKIP
    >>> for batch in batches:  # doctest: +SKIP
    ...     train(batch)
    ...     gaps.test_if_due()
    """

    def __init__(self, group: CollectorGroup, device: Device | None = None) -> None:
        self._waiting: queue.Queue[list[Sample]] = queue.Queue(MOST_WAITING)
        self._collector: DeviceCollector | None = None
        self._device = device
        try:
            self._writer = SampleWriter()
        except NotInJobError:
            return
        self._device = device or local_device()
        self._collector = DeviceCollector(group, self._device)
        threading.Thread(target=self._write, name="gaps", daemon=True).start()

    def test_if_due(self) -> bool:
        """Run the test if its turn has come; return whether it was run. A time in which the device is free is best.

        What the program has submitted to the device before is waited for, so that the test has it for itself.
        """
        collector = self._collector
        if collector is None or self._device is None or collector.wait_s() > 0:
            return False
        self._device.wait_until_free()
        samples = collector.collect()
        if not self._waiting.full():
            self._waiting.put_nowait(samples)
        return True

    def _write(self) -> None:
        while self._writer.write(self._waiting.get()):
            pass
        self._collector = None  # this launch is over
