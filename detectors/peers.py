"""Which devices are peers, and what may slow each: told by the tags of their samples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from collectors.causes import UNKNOWN
from collectors.probes import WRONG
from detectors.analysis import SlowGPUAnalysis
from detectors.rounds import DeviceKey

__all__ = ["Peers"]


class Peers:
    """What the devices have said of themselves.

    Parameters
    ----------
    labels
        Of devices that the user has labelled; the others are labelled by their model.

    Attributes
    ----------
    labels
        Of all devices that were met; only devices of one label are peers.
    uuids
        Of those that have one.
    causes
        The likely cause of a slowness, of each.
    wrong
        What was computed wrongly, and by whom.
    """

    def __init__(self, labels: Mapping[DeviceKey, Hashable] | None = None) -> None:
        self.labels: dict[DeviceKey, Hashable] = dict(labels or {})
        self.uuids: dict[DeviceKey, str] = {}
        self.causes: dict[DeviceKey, str] = {}
        self.wrong: dict[DeviceKey, str] = {}
        self._met_more = False

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Learn a device's UUID, what may slow it now, what it computed wrongly, and its model if it has no label."""
        self.causes[device] = tags.get("cause", UNKNOWN)
        if WRONG in tags:
            self.wrong[device] = tags[WRONG]
        if "uuid" in tags:
            self.uuids[device] = tags["uuid"]
        if device not in self.labels:
            self.labels[device] = tags.get("model", "")
            self._met_more = True

    def group(self, analysis: SlowGPUAnalysis) -> None:
        """Have an analysis know those that were met since the last time."""
        if self._met_more:
            self._met_more = False
            analysis.set_groups(self.labels)
