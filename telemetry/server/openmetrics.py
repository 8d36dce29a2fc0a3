"""``/metrics``: the newest value of every series, for Prometheus and what else reads its text formats.

https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvstore.store import Newest
from telemetry.catalogue import CATALOGUE, Metric

__all__ = ["CLASSIC", "OPEN_METRICS", "render"]

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES: dict[int, str] = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(series: Iterable[Newest], *, classic: bool) -> str:
    """Return the text: a family for each metric, a line for each of its series.

    A program's own metrics are called ``laggard_user_<name>``. The host is the label ``hostname``, as in newer
    dcgm-exporters: ``host`` and ``instance`` mean the target in many set-ups.
    """
    families: dict[str, tuple[Metric, dict[str, str]]] = {}
    for newest in series:
        metric = CATALOGUE.get(newest.metric) or _of_user(newest.metric)
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
