"""A job's timeline and readings in the form in which the page's scripts find them inside a report: pure."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from laggard.collectors.device import DeviceId
from laggard.resilience.report.inputs import ReportInputs
from laggard.telemetry.curves import MAX_FAR, MAX_LINES, ask, curve_by, curve_of, newest_of, step
from laggard.telemetry.link_matrix import SEND_TIME
from laggard.telemetry.nodes.sources import LocalSource
from laggard.telemetry.page.content import (
    MILLISECOND_US,
    accused,
    accused_nodes,
    accused_of,
    events_of,
    launches_of,
    lines_of,
    map_of,
    metrics_of,
)
from laggard.telemetry.query.engine import Span
from laggard.telemetry.store.history import History

MAX_POINTS = 300
# All lines of all metrics together, about; four bytes each, so the page stays below 5 MB.
MAX_LINE_VALUES = 700_000
_HIGHEST = float(np.finfo(np.float32).max)
_SECOND_US = 1_000_000


def frozen(inputs: ReportInputs, state: str, max_line_values: int = MAX_LINE_VALUES) -> dict[str, Any]:
    """Return what the page shows of a job that has ended; ``state`` says how, in a few words."""
    timeline = inputs.timeline
    events = list(timeline.events)
    keys = [] if inputs.store is None else inputs.store.series_keys()
    drawn = {*inputs.of_devices, *inputs.own_metrics, *([SEND_TIME] if inputs.links else [])}
    metrics = [
        {**each, "by": each["by"][:1], "on_map": each["name"] in inputs.of_devices}
        for each in metrics_of(key for key in keys if key[0] in drawn)
    ]
    data = (
        {}
        if inputs.store is None
        else _drawn(inputs, inputs.store, metrics, list(accused(events)), max_line_values // MAX_POINTS)
    )
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
            "metrics": metrics,
            "n_metrics": len(metrics),
            **accused_of(events),
            **events_of(events),
        },
        "links": {str(number): matrix.to_json(accused_nodes(events)) for number, matrix in inputs.links.items()},
        "lines": lines_of(inputs.error_lines),
        "maps": {},
        "curves": {},
        **data,
    }


def _drawn(
    inputs: ReportInputs,
    store: History,
    metrics: Sequence[Mapping[str, Any]],
    found_slow: Collection[DeviceId],
    n_left: int,
) -> dict[str, Any]:
    """Return the maps of devices, and each metric's curves by the tags that tell its lines apart, as JSON."""
    source, (begin_us, end_us) = LocalSource(store), store.span_us() or (0, 0)
    step_s = step(Span(begin_us, end_us), MAX_POINTS)
    span = Span(begin_us - begin_us % (step_s * _SECOND_US), end_us)  # a bucket has the time of its start
    maps, curves = {}, {}
    for at, metric in enumerate(metrics):
        name, most = metric["name"], n_left // (len(metrics) - at)
        asked = ask(source, name, span, step_s)
        lines, apart = [], []
        if name in inputs.of_devices:
            devices = newest_of(asked)
            maps[name] = map_of(name, devices)
            # The band is of those that were never found slow; there are lines of all devices, if they fit.
            apart = [device for device in devices if device in found_slow or (device[0], "") in found_slow]
            lines = list(devices) if len(devices) <= most else apart[:most]
            apart = apart if len(apart) < len(devices) else []
        found = {"[]": curve_of(asked, drawn=lines, apart=apart)}
        for tags in metric["by"]:
            found[orjson.dumps(tags).decode()] = curve_by(asked, tags, most=max(MAX_FAR, min(MAX_LINES, most)))
        n_left = max(0, n_left - sum(len(each["lines"]) for each in found.values()))
        curves[name] = {tags: _packed(curve) for tags, curve in found.items()}
    return {"maps": maps, "curves": curves}


def _packed(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve with its lines as 32-bit numbers, NaN for none: a spike leaves the small ones what they are."""
    lines = curve.pop("lines")
    values = np.array([line["values"] for line in lines], np.float64)
    return {
        **curve,
        "of": [line["of"] for line in lines],
        "far": [line["is_far"] for line in lines],
        "lines": base64.b64encode(np.clip(values, -_HIGHEST, _HIGHEST).astype("<f4").tobytes()).decode(),
    }


def _us(time_s: float) -> int:
    return round(time_s * _SECOND_US)


def _milliseconds(time_s: float) -> int:
    return _us(time_s) // MILLISECOND_US
