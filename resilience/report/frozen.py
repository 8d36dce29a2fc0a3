"""A job's timeline and readings in the form in which the page's scripts find them inside a report: pure."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.kvstore.series.timeseries import Floats
from laggard.resilience.report.inputs import ReportInputs
from laggard.telemetry.curves import ask, curve_of, newest_of, step
from laggard.telemetry.link_matrix import SEND_TIME
from laggard.telemetry.nodes.sources import LocalSource
from laggard.telemetry.page.content import (
    MILLISECOND_US,
    accused,
    accused_nodes,
    accused_of,
    events_of,
    launches_of,
    map_of,
    metrics_of,
)
from laggard.telemetry.query.engine import Span
from laggard.telemetry.store.history import History

MAX_POINTS = 300
# All lines of all metrics together; two bytes each, so the page stays below 3 MB.
MAX_LINE_VALUES = 700_000
NO_VALUE = 65_535
_SECOND_US = 1_000_000


def frozen(inputs: ReportInputs, state: str) -> dict[str, Any]:
    """Return what the page shows of a job that has ended; ``state`` says how, in a few words."""
    timeline = inputs.timeline
    events = list(timeline.events)
    keys = [] if inputs.store is None else inputs.store.series_keys()
    drawn = {*inputs.of_devices, *inputs.own_metrics, *([SEND_TIME] if inputs.links else [])}
    data = {} if inputs.store is None else _drawn(inputs, inputs.store, list(accused(events)))
    return {
        "about": {
            "name": timeline.name,
            "state": state,
            "live": False,
            "began": _milliseconds(timeline.began_s),
            "ended": _milliseconds(timeline.ended_s),
            "nodes": sorted(timeline.launches[-1].nodes) if timeline.launches else [],
            "missing": [],
            "launches": launches_of(events),
            "metrics": metrics_of(key for key in keys if key[0] in drawn),
            **accused_of(events),
            **events_of(events),
        },
        "links": {str(number): matrix.to_json(accused_nodes(events)) for number, matrix in inputs.links.items()},
        "maps": {},
        "curves": {},
        **data,
    }


def _drawn(inputs: ReportInputs, store: History, found_slow: Collection[DeviceId]) -> dict[str, Any]:
    """Return the maps and curves of the metrics that are drawn."""
    source, (begin_us, end_us) = LocalSource(store), store.span_us() or (0, 0)
    step_s = step(Span(begin_us, end_us), MAX_POINTS)
    span = Span(begin_us - begin_us % (step_s * _SECOND_US), end_us)  # a bucket has the time of its start
    max_values = MAX_LINE_VALUES // max(1, len(inputs.of_devices))
    curves = {name: curve_of(ask(source, name, span, step_s), drawn=[], apart=[]) for name in inputs.own_metrics}
    maps = {}
    for name in inputs.of_devices:
        asked = ask(source, name, span, step_s)
        devices = newest_of(asked)
        maps[name] = map_of(name, devices)
        # The band is of those that were never found slow; there are lines of all devices, if they fit.
        apart = [device for device in devices if device in found_slow or (device[0], "") in found_slow]
        lines = list(devices) if len(devices) * MAX_POINTS <= max_values else apart[: max_values // MAX_POINTS]
        curves[name] = curve_of(asked, drawn=lines, apart=apart if len(apart) < len(devices) else [])
    return {"maps": maps, "curves": {name: _packed(curve) for name, curve in curves.items()}}


def _packed(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve with its lines as 16-bit numbers between the lowest and the highest value."""
    lines = curve.pop("lines")
    values = np.array([line["values"] for line in lines], np.float64)
    known = values[np.isfinite(values)]
    lowest, highest = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    return {
        **curve,
        "devices": [line["of"] for line in lines],
        "lowest": lowest,
        "highest": highest,
        "lines": base64.b64encode(_codes(values, lowest, highest).tobytes()).decode(),
    }


def _codes(values: Floats, lowest: float, highest: float) -> NDArray[np.uint16]:
    """Return values as 16-bit numbers between the lowest and the highest; ``NO_VALUE`` where there is none."""
    share = (values - lowest) / (highest - lowest or 1.0)
    return np.where(np.isnan(values), NO_VALUE, np.round(np.nan_to_num(share) * (NO_VALUE - 1))).astype("<u2")


def _us(time_s: float) -> int:
    return round(time_s * _SECOND_US)


def _milliseconds(time_s: float) -> int:
    return _us(time_s) // MILLISECOND_US
