"""Writes the page: one HTML file with its pictures as inline SVG. It loads nothing from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment

from laggard.kvstore.connection import write_private
from laggard.resilience.record.effective_time import PART_NAMES, SHOWN_FROM_S
from laggard.resilience.record.timeline import Timeline
from laggard.resilience.report.costs import Costs, costs_of
from laggard.resilience.report.inputs import ReportInputs
from laggard.resilience.text import abbreviated, clock, counted, duration

if TYPE_CHECKING:
    from laggard.resilience.report.pictures import Picture

__all__ = ["PAGE_FILE", "write_report"]

PAGE_FILE = "report.html"
MAX_LOG_LINES = 500


def write_report(inputs: ReportInputs, folder: Path) -> Path:
    """Write the page and its pictures to an existing folder; return the page's path.

    The pictures need Matplotlib. Without it, the page has everything else, and says what to install.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    costs = costs_of(inputs.timeline, inputs.main_probe)
    pictures = _pictures(inputs, costs, folder)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=duration, abbreviated=abbreviated)
    template = environment.from_string(
        files("laggard.resilience.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    timeline = inputs.timeline
    page = template.render(
        timeline=timeline,
        costs=costs,
        part_names=PART_NAMES,
        shown_from_s=SHOWN_FROM_S,
        pictures=pictures,
        headline=_headline(timeline),
        missing=_missing(inputs, pictures),
        began=_moment(timeline.began_s),
        ended=_moment(timeline.ended_s),
        at=lambda time_s: clock(time_s - timeline.began_s),
        verdict_of={launch.number: timeline.verdict_that_ended(launch) for launch in timeline.launches},
        log=timeline.log[-MAX_LOG_LINES:],
        n_lines=counted(len(timeline.log), "line", "lines"),
        n_older_lines=max(0, len(timeline.log) - MAX_LOG_LINES),
        version=version("laggard"),
    )
    path = folder / PAGE_FILE
    write_private(path, page)
    return path


def _pictures(inputs: ReportInputs, costs: Costs, folder: Path) -> Mapping[str, Picture]:
    if find_spec("matplotlib") is None:
        return {}
    from laggard.resilience.report.pictures import draw_pictures  # Matplotlib is an extra

    return draw_pictures(inputs, costs, folder)


def _headline(timeline: Timeline) -> str:
    excluded = list(dict.fromkeys(host for launch in timeline.launches for host in launch.excluded))
    parts = [
        counted(len(timeline.launches), "launch", "launches"),
        f"excluded: {abbreviated(excluded)}" if excluded else "no node excluded",
        "no end recorded" if timeline.exit_code is None else f"exit code {timeline.exit_code}",
    ]
    return "; ".join(parts)


def _missing(inputs: ReportInputs, pictures: Mapping[str, Picture]) -> Sequence[str]:
    missing = []
    if not pictures and inputs.timeline.launches:
        missing.append("Pictures: install Matplotlib with pip install 'laggard[report]', and make the report again.")
    if not inputs.probes:
        missing.append("Probe times: no detector was running.")
    if inputs.utilization is None:
        missing.append("Utilisation: run with --telemetry-level=3 to record it.")
    return missing


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
