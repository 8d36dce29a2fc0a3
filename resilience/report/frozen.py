"""A job's timeline and readings in the form in which the page's scripts find them inside a report: pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats
from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.record import wording
from laggard.resilience.record.timeline import RecordedVerdict, Timeline
from laggard.resilience.report.inputs import ReportInputs
from laggard.resilience.report.own_curve import OwnCurve
from laggard.resilience.report.panel import Panel, percentile
from laggard.telemetry.events import Event, LaunchSpan
from laggard.telemetry.link_matrix import SEND_TIME
from laggard.telemetry.page.content import (
    MILLISECOND_US,
    accused,
    accused_nodes,
    accused_of,
    events_of,
    launches_of,
    map_of,
    metrics_of,
    numbers,
    unit_of,
)

# All lines of all metrics together; two bytes each, so the page stays below 3 MB.
MAX_LINE_VALUES = 700_000
NO_VALUE = 65_535
_SECOND_US = 1_000_000


def frozen(inputs: ReportInputs, state: str) -> dict[str, Any]:
    """Return what the page shows of a job that has ended; ``state`` says how, in a few words."""
    timeline = inputs.timeline
    panels = [*inputs.probes, *([] if inputs.utilization is None else [inputs.utilization])]
    events = events_of_timeline(timeline)
    found_slow = list(accused(events))
    keys: list[SeriesKey] = [(each.metric, ()) for each in inputs.own_curves]
    keys += [(SEND_TIME, ())] if inputs.links else []
    keys += [(panel.metric, (("gpu", gpu), ("host", host))) for panel in panels for host, gpu in panel.devices[:1]]
    return {
        "about": {
            "name": timeline.name,
            "state": state,
            "live": False,
            "began": _milliseconds(timeline.began_s),
            "ended": _milliseconds(timeline.ended_s),
            "nodes": sorted(timeline.launches[-1].nodes) if timeline.launches else [],
            "missing": [],
            "launches": launches_of([_span(timeline, number) for number in range(len(timeline.launches))]),
            "metrics": metrics_of(keys),
            **accused_of(events),
            **events_of(events),
        },
        "links": {str(number): matrix.to_json(accused_nodes(events)) for number, matrix in inputs.links.items()},
        "maps": {panel.metric: _map(panel) for panel in panels},
        "curves": {
            **{each.metric: _own_curve(each) for each in inputs.own_curves},
            **{panel.metric: _curve(panel, found_slow, MAX_LINE_VALUES // len(panels)) for panel in panels},
        },
    }


def events_of_timeline(timeline: Timeline) -> list[Event]:
    """Return what happened, in order, as a running job's server tells it."""
    events = []
    for launch in timeline.launches:
        events.append(Event(_us(launch.began_s), "launch", launch=launch.number, nodes=launch.nodes))
        if not math.isnan(launch.ended_s):
            why = decision_wording.reason(launch.why)
            events.append(Event(_us(launch.ended_s), "launch-end", why, launch=launch.number))
    events += map(_of_verdict, timeline.verdicts)
    events += [Event(_us(each.time_s), "failure", wording.failure(each), each.host) for each in timeline.failures]
    return sorted(events, key=lambda event: event.time_us)


def _of_verdict(of: RecordedVerdict) -> Event:
    verdict = of.of
    return Event(
        _us(of.time_s),
        "verdict",
        str(verdict.evidence),
        verdict.host,
        verdict.gpu or "",
        severity=verdict.severity,
        cause=str(verdict.cause) if verdict.cause.is_known else "",
        action=verdict.action,
    )


def _span(timeline: Timeline, number: int) -> LaunchSpan:
    launch = timeline.launches[number]
    ended_us = None if math.isnan(launch.ended_s) else _us(launch.ended_s)
    return LaunchSpan(launch.number, tuple(launch.nodes), tuple(launch.reserve), _us(launch.began_s), ended_us)


def _map(panel: Panel) -> dict[str, Any]:
    newest = {}
    for device, model, values in zip(panel.devices, panel.models, panel.values, strict=True):
        known = values[~np.isnan(values)]
        if len(known):
            newest[device] = float(known[-1]), model
    return map_of(panel.metric, newest)


def _own_curve(curve: OwnCurve) -> dict[str, Any]:
    low, middle, high = (numbers(each) for each in (curve.low, curve.mean, curve.high))
    times = np.round(curve.times_s * 1000).astype(np.int64).tolist()
    about = {"unit": unit_of(curve.metric), "n_series": curve.n_series}
    return {**about, "times": times, "low": low, "middle": middle, "high": high, "devices": []}


def _curve(panel: Panel, found_slow: Collection[DeviceId], max_values: int) -> dict[str, Any]:
    """Return the band of the devices that were not found slow, and the lines of all devices if they fit."""
    slow = [row for row, (host, gpu) in enumerate(panel.devices) if {(host, gpu), (host, "")} & set(found_slow)]
    others = [row for row in range(len(panel.devices)) if row not in slow] or list(range(len(panel.devices)))
    kept = list(range(len(panel.devices))) if panel.values.size <= max_values else slow
    kept = kept[: max_values // max(1, panel.values.shape[1])]
    lowest, highest = (float(each) for each in (np.nanmin(panel.values), np.nanmax(panel.values)))
    low, middle, high = (numbers(percentile(panel.values[others], percent)) for percent in (5, 50, 95))
    return {
        "unit": unit_of(panel.metric),
        "n_series": len(others),
        "times": np.round(panel.times_s * 1000).astype(np.int64).tolist(),
        "low": low,
        "middle": middle,
        "high": high,
        "devices": [panel.devices[row] for row in kept],
        "lowest": lowest,
        "highest": highest,
        "lines": base64.b64encode(_codes(panel.values[kept], lowest, highest).tobytes()).decode(),
    }


def _codes(values: Floats, lowest: float, highest: float) -> NDArray[np.uint16]:
    """Return values as 16-bit numbers between the lowest and the highest; ``NO_VALUE`` where there is none."""
    share = (values - lowest) / (highest - lowest or 1.0)
    return np.where(np.isnan(values), NO_VALUE, np.round(np.nan_to_num(share) * (NO_VALUE - 1))).astype("<u2")


def _us(time_s: float) -> int:
    return round(time_s * _SECOND_US)


def _milliseconds(time_s: float) -> int:
    return _us(time_s) // MILLISECOND_US
