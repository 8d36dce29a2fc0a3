"""Dashboards fitted to one job: to the metrics that it has, its size, and, if it has ended, its time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from laggard.telemetry.catalogue import CATALOGUE
from laggard.telemetry.link_matrix import LEAF_SEND_TIME, MAX_NAMES

# Lines that a chart can show; with more, it shows the least, the mean and the greatest of them. A table of the links
# of more nodes would have more rows than the server answers with.
MAX_LINES = 256
_WIDTH = 24
# The primary has summaries of this width, and need not ask the nodes.
_SUMMARIZED = "10s"
_BAND = {"min": "least", "avg": "mean", "max": "greatest"}

Dashboard = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a dashboard is for."""

    metrics: Collection[str]  # the metrics that the job has
    n_lines: int  # its nodes or its devices, whichever are more
    # Unix times of its first and last sample if it has ended; None while it runs
    range_s: tuple[float, float] | None = None
    n_nodes: int = 0  # its nodes; 0 if that is not known


def fitted(dashboard: Mapping[str, Any], shape: JobShape) -> Dashboard:
    """Return a dashboard without what a job cannot fill, within the server's limits, and on the job's own time."""
    found: Dashboard = deepcopy(dict(dashboard))
    panels = [panel for panel in found["panels"] if _has_room(panel, shape.n_nodes)]
    found["panels"] = _laid_out(_filled(panels, shape.metrics))
    if any(variable.get("includeAll") for variable in found["templating"]["list"]):
        for panel in found["panels"]:
            if panel["type"] == "timeseries":
                del panel["maxDataPoints"]
                if shape.n_lines > MAX_LINES:
                    panel |= {"interval": _SUMMARIZED, "targets": _band(panel["targets"])}
            elif panel["type"] == "table" and shape.n_nodes > MAX_LINES:
                panel["targets"] = _by_sender(panel["targets"])
    if shape.range_s is not None:
        found["time"] = dict(zip(("from", "to"), map(_iso, shape.range_s), strict=True))
        found["refresh"] = ""
    return found


def _filled(panels: Iterable[Dashboard], metrics: Collection[str]) -> list[Dashboard]:
    """Return the panels that have something to draw, and the rows that have such panels."""
    # Only what is read from the start of a job is left out if it is missing: test kernels and events come later.
    read = any(name in metrics for name in CATALOGUE)
    kept: list[Dashboard] = []
    for panel in panels:
        if panel["type"] != "row":
            targets = [each for each in panel["targets"] if not read or _is_there(each["metric"], metrics)]
            if not targets:
                continue
            panel = {**panel, "targets": targets}
        elif kept and kept[-1]["type"] == "row":
            kept.pop()
        kept.append(panel)
    return kept[:-1] if kept and kept[-1]["type"] == "row" else kept


def _is_there(metric: str, metrics: Collection[str]) -> bool:
    return metric in metrics or metric not in CATALOGUE


def _has_room(panel: Mapping[str, Any], n_nodes: int) -> bool:
    """Whether a panel is not a matrix, or has rows that can be read: nodes if these are few, else leaf switches."""
    is_matrix = any(step["id"] == "groupingToMatrix" for step in panel.get("transformations", ()))
    is_of_leaves = any(target["metric"] == LEAF_SEND_TIME for target in panel.get("targets", ()))
    return not is_matrix or not n_nodes or is_of_leaves == (n_nodes > MAX_NAMES)


def _laid_out(panels: Iterable[Dashboard]) -> list[Dashboard]:
    """Return panels from left to right and from top to bottom, without gaps."""
    placed, x, y, height = [], 0, 0, 0
    for panel in panels:
        w, h = panel["gridPos"]["w"], panel["gridPos"]["h"]
        if x + w > _WIDTH:
            x, y, height = 0, y + height, 0
        placed.append({**panel, "gridPos": {"h": h, "w": w, "x": x, "y": y}})
        x, height = x + w, max(height, h)
    return placed


def _band(targets: Iterable[Dashboard]) -> list[Dashboard]:
    """Return targets for a band over all series instead of a line for each."""
    drawn: list[Dashboard] = []
    for target in targets:
        filters = [{**each, "groupBy": False} for each in target["filters"]]
        # The rate of the least counter is not the least rate.
        names = {"avg": _BAND["avg"]} if target.get("shouldComputeRate") else _BAND
        for aggregator, name in names.items():
            ref = chr(ord("A") + len(drawn))
            drawn.append({**target, "refId": ref, "aggregator": aggregator, "alias": name, "filters": filters})
    return drawn


def _by_sender(targets: Iterable[Dashboard]) -> list[Dashboard]:
    """Return targets for a row of each node instead of one of each link."""
    drawn: list[Dashboard] = []
    for target in targets:
        if any(each["tagk"] == "peer" for each in target["filters"]):
            filters = [{**each, "groupBy": each["tagk"] != "peer"} for each in target["filters"]]
            target = {**target, "alias": "$tag_host", "filters": filters}
        drawn.append(target)
    return drawn


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
