"""The formats of answers: JSON as each version of Grafana reads it, and ``/metrics`` for Prometheus.

A value in JSON is never NaN. A missing one is left out, except for clients that draw a gap for ``null``: Grafana's Go
back end would draw 0. The text format is https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from laggard.kvstore.series.sample_store import Newest
from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry import wording
from laggard.telemetry.catalogue import CATALOGUE, SERVED, Metric
from laggard.telemetry.events import Event
from laggard.telemetry.query.engine import Answer
from laggard.telemetry.query.parsing import Query, SubQuery
from laggard.telemetry.query.times import SECOND_US

JSON = "application/json; charset=UTF-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES: dict[int, str] = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPES_IN_HELP = {code: text for code, text in _ESCAPES.items() if code != ord('"')}


def answers_to_json(query: Query, answers: Iterable[tuple[SubQuery, Answer]], events: Sequence[Event]) -> bytes:
    """Return the answer to ``/api/query``."""
    # Only the first element has the events: if every series had them, a client would draw each event many times.
    elements: list[dict[str, Any]] = []
    for sub_query, answer in answers:
        about: dict[str, Any] = {"metric": answer.metric, "tags": answer.tags, "aggregateTags": answer.aggregate_tags}
        if query.show_query:
            about["query"] = {**sub_query.source, "index": sub_query.index}
        if events and not elements:
            about["globalAnnotations"] = [annotation(event) for event in events]
        about["dps"] = _points(query, sub_query, answer.times_us, answer.values)
        elements.append(about)
    return orjson.dumps(elements)


class JsonResponse(Response):
    """An answer in strict, compact JSON."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return orjson.dumps(content)


def naming(missing: Collection[str]) -> dict[str, str]:
    """Return the header that names the nodes that are missing from an answer."""
    return {"X-Laggard-Missing-Nodes": ",".join(sorted(missing))} if missing else {}


def annotation(event: Event) -> dict[str, Any]:
    """Return an event as OpenTSDB's annotation."""
    what = wording.event(event)
    custom: Mapping[str, str] = {"kind": event.kind, "host": event.host, "gpu": event.gpu}
    return {
        "description": what if event.kind in {"launch", "launch-end"} else f"{event.kind}: {what}",
        "notes": "",
        "startTime": event.time_us // SECOND_US,
        "endTime": 0,
        "custom": {key: value for key, value in custom.items() if value},
    }


def _points(query: Query, sub_query: SubQuery, times_us: Times, values: Floats) -> Any:
    """Return the points of a series; a value that is not finite becomes null, where the client draws a gap for it."""
    if not (query.nulls and sub_query.downsample is not None and sub_query.downsample.fill is not None):
        finite = np.isfinite(values)
        times_us, values = times_us[finite], values[finite]
    times = (times_us // (1000 if query.milliseconds else SECOND_US)).tolist()
    pairs = zip(times if query.arrays else map(str, times), values.tolist(), strict=True)
    return list(pairs) if query.arrays else dict(pairs)


def metrics_to_text(series: Iterable[Newest]) -> str:
    """Return the newest values as text: a family for each metric, a line for each of its series."""
    # A program's own metrics are named `laggard_user_<name>`. The host is the label `hostname`, as in recent versions
    # of dcgm-exporter: in many set-ups `host` and `instance` are labels of the target.
    families: dict[str, tuple[Metric, dict[str, str]]] = {}
    for newest in series:
        metric = CATALOGUE.get(newest.metric) or SERVED.get(newest.metric) or _of_user(newest.metric)
        _, lines = families.setdefault(metric.exported, (metric, {}))
        name = f"{metric.exported}{_labels(newest.tags)}"
        lines[name] = f"{name} {_number(newest.value * metric.scale)}"
    parts = []
    for family, (metric, lines) in sorted(families.items()):
        meaning = metric.meaning.translate(_ESCAPES_IN_HELP)
        parts += [f"# HELP {family} {meaning}", f"# TYPE {family} {metric.kind}", *lines.values()]
    return "\n".join([*parts, ""])


def _of_user(name: str) -> Metric:
    return Metric(name, "", f"The program's own metric {name}", f"laggard_user_{_NOT_IN_NAMES.sub('_', name)}")


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
