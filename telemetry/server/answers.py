"""The formats of answers: JSON as each version of Grafana reads it, and ``/metrics`` for Prometheus.

A value in JSON is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go
back end would draw 0. The text formats are those of https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from laggard.kvstore.series.sample_store import Newest
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry import wording
from laggard.telemetry.catalogue import CATALOGUE, SERVED, Metric
from laggard.telemetry.events import Event
from laggard.telemetry.query.engine import Answer
from laggard.telemetry.query.parsing import Query, SubQuery
from laggard.telemetry.query.times import SECOND_US

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES: dict[int, str] = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def answers_to_json(query: Query, answers: Iterable[tuple[SubQuery, Answer]], events: Sequence[Event]) -> bytes:
    """Return the answer to ``/api/query``."""
    # Only the first element has the events: if every series had them, a client would draw each event many times.
    points = _Points(query)
    elements: list[dict[str, Any]] = []
    for sub_query, answer in answers:
        about: dict[str, Any] = {"metric": answer.metric, "tags": answer.tags, "aggregateTags": answer.aggregate_tags}
        if query.show_query:
            about["query"] = {**sub_query.source, "index": sub_query.index}
        if events and not elements:
            about["globalAnnotations"] = [annotation(event) for event in events]
        about["dps"] = orjson.Fragment(points.write(sub_query, answer.times_us, answer.values))
        elements.append(about)
    return to_json(elements)


def to_json(value: Any) -> bytes:
    """Return strict, compact JSON."""
    return orjson.dumps(value)


def annotation(event: Event) -> dict[str, Any]:
    """Return an event as OpenTSDB's annotation."""
    custom: Mapping[str, str] = {"kind": event.kind, "host": event.host, "gpu": event.gpu}
    return {
        "description": f"{event.kind}: {wording.event(event)}",
        "notes": "",
        "startTime": event.time_us // SECOND_US,
        "endTime": 0,
        "custom": {key: value for key, value in custom.items() if value},
    }


class _Points:
    """Formats the points of one series after the other; series mostly share their times, and the text of these."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._unit_us = 1000 if query.milliseconds else SECOND_US
        self._empty, self._end = ("[]", "]]") if query.arrays else ("{}", "}")
        self._times_us: Times | None = None
        self._pieces: list[str] = []

    def write(self, sub_query: SubQuery, times_us: Times, values: Floats) -> str:
        # The numbers are formatted in one call, then split, and the times are put between them: a dict of all points
        # would take twice as long. Values that are not finite become null.
        numbers = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        if "n" in numbers and not self._shows_missing(sub_query):
            finite = np.isfinite(values)
            return self.write(sub_query, times_us[finite], values[finite])
        if len(values) == 0:
            return self._empty
        if times_us is not self._times_us:
            self._times_us = times_us
            self._pieces = [self._end] * (2 * len(times_us) + 1)
            self._pieces[:-1:2] = _times(times_us.tobytes(), self._unit_us, arrays=self._query.arrays)
        self._pieces[1::2] = numbers[1:-1].split(",")
        return "".join(self._pieces)

    def _shows_missing(self, sub_query: SubQuery) -> bool:
        return self._query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None


@lru_cache(maxsize=4)
def _times(times_us: bytes, unit_us: int, *, arrays: bool) -> list[str]:
    """Return the text before each value; cached, since the series of an answer mostly share their times."""
    first, other = ("[[%d,", "],[%d,") if arrays else ('{"%d":', ',"%d":')
    times = (np.frombuffer(times_us, dtype=np.int64) // unit_us).tolist()
    return [first % times[0], *(other % time for time in times[1:])]


def metrics_to_text(series: Iterable[Newest], *, classic: bool) -> str:
    """Return the newest values as text: a family for each metric, a line for each of its series."""
    # A program's own metrics are named `laggard_user_<name>`. The host is the label `hostname`, as in recent versions
    # of dcgm-exporter: in many set-ups `host` and `instance` are labels of the target.
    families: dict[str, tuple[Metric, dict[str, str]]] = {}
    for newest in series:
        metric = CATALOGUE.get(newest.metric) or SERVED.get(newest.metric) or _of_user(newest.metric)
        family = metric.exported.removesuffix("_total") if metric.kind == "counter" else metric.exported
        _, lines = families.setdefault(family, (metric, {}))
        suffix = "_total" if metric.kind == "counter" else ""
        name = f"{family}{suffix}{_labels(newest.tags)}"
        lines[name] = f"{name} {_number(newest.value * metric.scale)}"
    parts = []
    for family, (metric, lines) in sorted(families.items()):
        described = f"{family}_total" if classic and metric.kind == "counter" else family
        meaning = metric.meaning.translate(_ESCAPES)
        parts += [f"# HELP {described} {meaning}", f"# TYPE {described} {metric.kind}", *lines.values()]
    return "\n".join([*parts, *([] if classic else ["# EOF"]), ""])


def _of_user(name: str) -> Metric:
    return Metric(name, 1, "", f"The program's own metric {name}", f"laggard_user_{_NOT_IN_NAMES.sub('_', name)}")


def _labels(tags: dict[str, str]) -> str:
    labels: dict[str, str] = {}
    for key, value in sorted(tags.items()):
        name = _NOT_IN_NAMES.sub("_", "hostname" if key == "host" else key)
        name = f"_{name}" if name[:1].isdigit() or name in labels else name
        labels.setdefault(name.replace("__", "_", 1) if name.startswith("__") else name, value)
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in {float("inf"), float("-inf")}:
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
