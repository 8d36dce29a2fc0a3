"""What the page shows, in the form in which its scripts read it: of a running job, of dumps, or frozen in a report."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from laggard.kvstore.series.sample_store import SeriesKey
from laggard.kvstore.series.timeseries import Floats, TimeSeries
from laggard.telemetry import wording
from laggard.telemetry.catalogue import CATALOGUE, EVENTS, STEP
from laggard.telemetry.error_lines import ErrorLine
from laggard.telemetry.events import Event
from laggard.telemetry.link_matrix import LINK_METRICS, natural

MAX_EVENTS = 2_000
MAX_METRICS = 500
MILLISECOND_US = 1_000
OF_SERIES, N_SERIES = "of_series", "n_series"
"""Tags in a job's record: whether a series is the lowest, mean or highest of a metric's series, and of how many."""
MEAN = "mean"
_NUMBER = re.compile(r"[0-9]{1,9}")
_PROBE = re.compile(r"probe")
_SECTION_TIME = "section-time."  # as the collectors call them
# What people look at first, by the usual names; the rest comes by name.
_FIRST = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (
        r"^(train(ing)?[^a-z])?loss$",
        r"(step|iter|iteration|batch)[^a-z]?(time|duration|seconds|ms)(?![a-z])"
        r"|(time|seconds|ms)[^a-z]?per[^a-z]?(step|iter|iteration|batch)(?![a-z])",
        r"(?<![a-z])loss(?![a-z])",  # those of parts, of which there may be many
        r"throughput|(tokens|samples|flops)[^a-z]?(per|/)|mfu",
        r"grad",
    )
)
_PLACES = {name: place for place, name in enumerate(CATALOGUE)}
_KINDS = ("device", "node", "program", "link")
_GROUPINGS = (("rank",), ("host", "gpu"), ("host", "process"), ("host",))
_NEVER_GROUPED = {OF_SERIES, N_SERIES, "model", *(name for grouping in _GROUPINGS for name in grouping)}


def accused(events: Iterable[Event]) -> dict[tuple[str, str], Event]:
    """Return the devices (or nodes, with an empty GPU) that were found slow and not well again, the newest first."""
    # Each has its newest verdict.
    found: dict[tuple[str, str], Event] = {}
    for event in events:
        if event.kind == "verdict":
            found.pop((event.host, event.gpu), None)
            if event.severity != "well again":
                found[event.host, event.gpu] = event
    return dict(reversed(found.items()))


def accused_nodes(events: Iterable[Event]) -> list[str]:
    """Return the nodes that were found slow as such, not for one of their devices."""
    return [host for host, gpu in accused(events) if not gpu]


def accused_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return the same as the page reads it: the devices, and the evidence against each."""
    found = accused(events)
    evidence = [{"time": event.time_us // MILLISECOND_US, "text": wording.event(event)} for event in found.values()]
    return {"accused": list(found), "evidence": evidence}


def launches_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the launches as the page draws them: what each had, and which nodes of those before it were left out."""
    seen: dict[str, None] = {}
    launches: list[dict[str, Any]] = []
    for event in events:
        if event.kind == "launch":
            at_hand = dict.fromkeys((*event.nodes, *event.reserve))
            seen |= at_hand
            launches.append(
                {
                    "number": event.launch,
                    "began": event.time_us // MILLISECOND_US,
                    "ended": None,
                    "nodes": event.nodes,
                    "reserve": event.reserve,
                    "excluded": [host for host in seen if host not in at_hand],
                }
            )
        elif event.kind == "launch-end" and launches and launches[-1]["number"] == event.launch:
            launches[-1]["ended"] = event.time_us // MILLISECOND_US
    return launches


def map_of(
    metric: str, newest: Mapping[tuple[str, str], tuple[float, str]], known: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return a map of devices (of nodes, with an empty GPU), given the newest value of each and its model."""
    # Of `known`, those without a value are on it too.
    devices = sorted({*newest, *known}, key=lambda device: (natural(device[0]), natural(device[1])))
    hosts = list(dict.fromkeys(host for host, _ in devices))
    number = {host: at for at, host in enumerate(hosts)}
    read = [newest.get(device, (math.nan, "")) for device in devices]
    values = np.array([value for value, _ in read])
    return {
        "unit": unit_of(metric),
        "is_probe": is_probe(metric),
        "hosts": hosts,
        "host_of": [number[host] for host, _ in devices],
        "gpus": [gpu for _, gpu in devices],
        "values": numbers(values),
        "ratios": numbers(ratios_to_peers(values, [model for _, model in read])),
    }


def ratios_to_peers(values: Floats, models: list[str]) -> Floats:
    """Return each value over the median of its model; NaN where there is no peer, or the median is not above 0."""
    ratios = np.full(len(values), np.nan)
    for model in dict.fromkeys(models):
        of_model = np.array([each == model for each in models], np.bool_) & np.isfinite(values)
        if of_model.sum() > 1 and (middle := np.median(values[of_model])) > 0:
            ratios[of_model] = values[of_model] / middle
    return ratios


def metrics_of(keys: Iterable[SeriesKey]) -> list[dict[str, Any]]:
    """Return the metrics of these series, in the order of what people look at first."""
    first: dict[str, dict[str, str]] = {}
    varying: dict[str, set[str]] = {}
    for metric, tags in keys:
        if metric == EVENTS:
            continue
        known, differs = first.setdefault(metric, dict(tags)), varying.setdefault(metric, set())
        for name, value in tags:
            if known.setdefault(name, value) != value:
                differs.add(name)
    found = [_metric(metric, tags.keys(), varying[metric]) for metric, tags in first.items()]
    places = {id(each): (_KINDS.index(each["kind"]), not each["is_probe"], *importance(each["name"])) for each in found}
    return sorted(found, key=lambda each: places[id(each)])[:MAX_METRICS]


def importance(metric: str) -> tuple[int, tuple[tuple[int, str], ...]]:
    """Return a sort key among metrics of a kind: of the program's own, the loss comes first and the steps last."""
    if metric in _PLACES:
        return _PLACES[metric], ()
    place = next((place for place, words in enumerate(_FIRST) if words.search(metric)), len(_FIRST))
    return place + (metric == STEP), natural(metric)


def _metric(metric: str, names: Collection[str], varying: Set[str]) -> dict[str, Any]:
    has_devices = {"host", "gpu"} <= {*names}
    probes = has_devices and is_probe(metric)
    kind = "program" if metric not in CATALOGUE and not probes else "device" if has_devices else "node"
    return {
        "name": metric,
        "kind": "link" if metric in LINK_METRICS else kind,
        "unit": unit_of(metric),
        "on_map": "host" in names and metric not in LINK_METRICS,
        "is_probe": probes,
        "by": _groupings(names, varying),
    }


def _groupings(names: Collection[str], varying: Set[str]) -> list[tuple[str, ...]]:
    """Return by which tags the series of a metric can be told apart, the best first."""
    usual = [each for each in _GROUPINGS if each[-1] in names and varying & {*each}]
    return [*usual, *((name,) for name in sorted(varying - _NEVER_GROUPED))]


def recorded_means(series: Sequence[TimeSeries]) -> tuple[list[TimeSeries], int]:
    """Return the series whose mean a chart shows, and how many they stand for: a record has means of many series."""
    means = [each for each in series if each.tags.get(OF_SERIES, MEAN) == MEAN] or list(series)
    return means, sum(n_series_of(each.tags) for each in means)


def n_series_of(tags: Mapping[str, str]) -> int:
    """Return how many series one stands for."""
    number = tags.get(N_SERIES, "")
    return int(number) if OF_SERIES in tags and _NUMBER.fullmatch(number) else 1


def is_probe(metric: str) -> bool:
    """Return whether a metric is the time of a test kernel, by its name."""
    return metric not in CATALOGUE and _PROBE.search(metric) is not None


def unit_of(metric: str) -> str:
    """Return a metric's unit; empty if it is a plain number, or unknown."""
    known = CATALOGUE.get(metric)
    if known is not None:
        return known.unit
    return "s" if is_probe(metric) or metric.startswith(_SECTION_TIME) else ""


def events_of(events: list[Event]) -> dict[str, Any]:
    """Return the newest events as the page shows them, and how many older ones are left out."""
    found = [
        {
            "time": event.time_us // MILLISECOND_US,
            "kind": event.kind,
            "text": wording.event(event),
            "launch": event.launch,
            "host": event.host,
            "gpu": event.gpu,
        }
        for event in events[-MAX_EVENTS:]
    ]
    return {"events": found, "events_left_out": max(0, len(events) - MAX_EVENTS)}


def lines_of(lines: Iterable[ErrorLine]) -> list[dict[str, Any]]:
    """Return lines of standard error as the page shows them."""
    return [
        {"time": line.time_us // MILLISECOND_US, "host": line.host, "rank": line.rank, "text": line.text}
        for line in lines
    ]


def numbers(values: Floats, digits: int = 5) -> list[float | None]:
    """Return numbers of a few digits, and None for what is not finite: JSON has no NaN."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
