"""Writes the report: the page of a running job with the job's data frozen inside, and the tables of what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from laggard.kvstore.client.connection import write_private
from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.record import wording
from laggard.resilience.record.effective_time import SHOWN_FROM_S
from laggard.resilience.record.own_metrics import MAX_METRICS
from laggard.resilience.record.timeline import Timeline
from laggard.resilience.report.costs import costs_of
from laggard.resilience.report.frozen import frozen
from laggard.resilience.report.inputs import ReportInputs
from laggard.resilience.report.time_bars import PART_ORDER, time_bars
from laggard.resilience.text import abbreviated, clock, counted, duration
from laggard.telemetry.page import frozen_document

PAGE_FILE = "report.html"
MAX_LOG_LINES = 500


def write_report(inputs: ReportInputs, folder: Path) -> Path:
    """Write the page to an existing folder; return its path."""
    timeline, costs = inputs.timeline, costs_of(inputs.timeline, on_gpus=not inputs.has_virtual_devices)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        duration=duration,
        abbreviated=abbreviated,
        reason=decision_wording.reason,
        failure=wording.failure,
        effective_time=wording.effective_time,
        likely_cause=wording.likely_cause,
    )
    bars = time_bars(timeline, costs.times)
    drawn = {part.name for bar in bars for part in bar.parts}
    values = {
        "timeline": timeline,
        "costs": costs,
        "bars": bars,
        "shown_parts": [name for name in PART_ORDER if name in drawn],
        "part_names": wording.PART_NAMES,
        "shown_from_s": SHOWN_FROM_S,
        "headline": _headline(timeline),
        "missing": _missing(inputs),
        "began": _moment(timeline.began_s),
        "ended": _moment(timeline.ended_s),
        "at": lambda time_s: clock(time_s - timeline.began_s),
        "verdict_of": {launch.number: timeline.verdict_that_ended(launch) for launch in timeline.launches},
        "log": timeline.log[-MAX_LOG_LINES:],
        "n_lines": counted(len(timeline.log), "line", "lines"),
        "n_older_lines": max(0, len(timeline.log) - MAX_LOG_LINES),
        "version": version("laggard"),
    }
    facts, more = (environment.from_string(_read(f"{name}.html.j2")).render(values) for name in ("facts", "tables"))
    state = "; ".join(filter(None, (wording.ending(timeline.exit_code, costs.times), wording.lost(costs.times))))
    title = f"{timeline.name}: {state}"
    document = frozen_document(title, frozen(inputs, state), facts=facts, more=more, style=_read("report.css"))
    path = folder / PAGE_FILE
    write_private(path, document.html.decode())
    return path


def _read(name: str) -> str:
    return files("laggard.resilience.report").joinpath(name).read_text(encoding="utf-8")


def _headline(timeline: Timeline) -> str:
    excluded = list(dict.fromkeys(host for launch in timeline.launches for host in launch.excluded))
    failures = timeline.failures if timeline.exit_code else ()
    parts = [
        counted(len(timeline.launches), "launch", "launches"),
        f"excluded: {abbreviated(excluded)}" if excluded else "no node excluded",
        *(wording.failure(failure) for failure in failures[-1:]),
    ]
    return "; ".join(parts)


def _missing(inputs: ReportInputs) -> Sequence[str]:
    missing = []
    if not inputs.probes:
        missing.append("Probe times: no detector was running.")
    if not inputs.has_utilization:
        missing.append("Utilisation: run with --telemetry-level=3 to record it.")
    if len(inputs.own_metrics) == MAX_METRICS:
        missing.append(f"The program's own metrics beyond the first {MAX_METRICS} that it sent, if there were more.")
    return missing


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
