"""The report's figures, each drawn by a function of the timeline and the measurements. Nothing is read or written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from laggard.collectors.device import DeviceId
from laggard.kvstore.timeseries import Floats
from laggard.resilience.record.timeline import Launch, Timeline, natural
from laggard.resilience.report.panel import Panel, percentile
from laggard.resilience.text import clock

__all__ = ["STYLE", "add_legend", "heat_map", "label_times", "new_figure", "node_timeline", "probe_times"]

STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a939b",
    "axes.labelcolor": "#30363c",
    "xtick.color": "#30363c",
    "ytick.color": "#30363c",
    "text.color": "#1d2125",
    "svg.fonttype": "none",
    "hatch.linewidth": 0.6,
}
# Distinguishable with colour blindness, each with a contrast of at least 3 on white.
LAUNCH_COLOURS = ("#2a6fb0", "#1b8578", "#7a5bb5", "#8a6d1f")
RESERVE, EXCLUDED, GAP, BAND, QUIET = "#c9d1d8", "#c8372d", "#d9534a", "#9db8d2", "#7d98b3"
ACCUSED = ("#c8372d", "#cf6a00", "#8e3f9e", "#8a6d1f", "#1b8578", "#b0307a")
NO_DATA = "#e6eaed"
WIDTH_IN = 9.6
MAX_ROWS = 24
MAX_LINES = 16
MAX_LABELS = 32
MAX_TICKS = 9
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 12 * 3600, 86_400)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the timeline: one node, or all nodes without their own row."""

    label: str
    hosts: tuple[str, ...]


def node_timeline(timeline: Timeline) -> Figure:
    """Draw each node's role in each launch, the exclusions and the verdicts."""
    rows = _rows(timeline)
    figure, axes = new_figure(1.3 + 0.36 * len(rows))
    for at, row in enumerate(rows):
        for number, launch in enumerate(timeline.launches):
            _draw_launch(axes, at, row, number, launch, timeline)
        for verdict in timeline.verdicts:
            if verdict.host in row.hosts:
                at_s = verdict.time_s - timeline.began_s
                axes.plot(at_s, at - 0.42, "v", color=EXCLUDED, markersize=8, clip_on=False)
    for before, launch in zip(timeline.launches, timeline.launches[1:], strict=False):
        start_s = before.ended_s - timeline.began_s
        axes.axvspan(start_s, launch.began_s - timeline.began_s, color=GAP, alpha=0.28, linewidth=0)
    for number, launch in enumerate(timeline.launches):
        colour = LAUNCH_COLOURS[number % len(LAUNCH_COLOURS)]
        at_s = launch.began_s - timeline.began_s
        axes.text(at_s, -0.72, f"launch {launch.number}", color=colour, fontsize=9, fontweight="bold")
    axes.set_ylim(len(rows) - 0.4, -0.95)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.tick_params(axis="y", length=0)
    _time_axis(axes, timeline)
    add_legend(
        figure,
        [
            Patch(color=LAUNCH_COLOURS[0], label="in use"),
            Patch(color=RESERVE, label="reserve"),
            Patch(facecolor="#f6dcda", edgecolor=EXCLUDED, hatch="////", linewidth=0, label="excluded"),
            Patch(color=GAP, alpha=0.28, label="relaunch"),
            Line2D([], [], color=EXCLUDED, marker="v", linestyle="", markersize=8, label="verdict"),
        ],
    )
    return figure


def probe_times(timeline: Timeline, probes: Panel) -> Figure:
    """Draw the probe times of devices with a verdict against the range of all others, and mark each verdict."""
    figure, axes = new_figure(3.9)
    unit, scale = (", ms", 1000.0) if probes.in_seconds else ("", 1.0)
    accused = list(dict.fromkeys((verdict.host, verdict.gpu or "") for verdict in timeline.verdicts))
    others = [row for row in range(len(probes.devices)) if probes.devices[row] not in accused]
    values = probes.values * scale
    handles: list[Any] = []
    if others:
        quantiles = [percentile(values[others], percent) for percent in (5, 50, 95)]
        for times, (low, middle, high) in _traces(probes, quantiles, timeline):
            axes.fill_between(times, low, high, color=BAND, alpha=0.55, linewidth=0)
            axes.plot(times, middle, color=LAUNCH_COLOURS[0], linewidth=1.6)
        handles += [
            Line2D([], [], color=LAUNCH_COLOURS[0], label=f"median of {len(others):,} others"),
            Patch(color=BAND, alpha=0.55, label="their 5th to 95th percentile"),
        ]
    for row in others if len(others) <= MAX_LINES else ():
        for times, (trace,) in _traces(probes, [values[row]], timeline):
            axes.plot(times, trace, color=QUIET, linewidth=0.7, alpha=0.8)
    for number, row in enumerate(probes.rows(accused[: len(ACCUSED)])):
        host, gpu = probes.devices[row]
        label = f"{host} gpu {gpu}" if gpu else host
        for times, (trace,) in _traces(probes, [values[row]], timeline):
            axes.plot(times, trace, "o-", color=ACCUSED[number], linewidth=1.6, markersize=3)
        handles.append(Line2D([], [], color=ACCUSED[number], marker="o", markersize=3, label=label))
    _mark_verdicts(axes, timeline)
    _mark_launches(axes, timeline)
    finite = values[np.isfinite(values) & (values > 0)]
    if len(finite) and np.max(finite) > 4 * np.median(finite):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if _leads(value, 2, 5) else ""))
    axes.set_ylabel(f"{probes.metric}{unit}")
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    _time_axis(axes, timeline)
    if timeline.verdicts:
        handles.append(Line2D([], [], color=EXCLUDED, linestyle="--", linewidth=1.2, label="verdict"))
    add_legend(figure, handles)
    return figure


def heat_map(timeline: Timeline, panel: Panel, label: str) -> Figure:
    """Draw one metric of all devices, one row each."""
    order = sorted(range(len(panel.devices)), key=lambda row: tuple(natural(part) for part in panel.devices[row]))
    few = len(order) <= MAX_LABELS
    figure, axes = new_figure(1.3 + (0.24 * len(order) if few else 5.2))
    edges_s = panel.edges_s - timeline.began_s
    mesh = axes.imshow(
        np.ma.masked_invalid(panel.values[order]),
        aspect="auto",
        interpolation="none",
        cmap=mpl.colormaps["cividis"].with_extremes(bad=NO_DATA),
        vmin=0,
        vmax=100,
        extent=(edges_s[0], edges_s[-1], len(order) - 0.5, -0.5),
    )
    axes.set_facecolor(NO_DATA)
    accused = {(verdict.host, verdict.gpu or "") for verdict in timeline.verdicts}
    shown = [at for at, row in enumerate(order) if few or panel.devices[row] in accused]
    labels = [_label(panel.devices[order[at]], accused) for at in shown]
    axes.set_yticks(shown, labels, fontsize=9)
    for text, at in zip(axes.get_yticklabels(), shown, strict=True):
        if panel.devices[order[at]] in accused:
            text.set_color(EXCLUDED)
    axes.tick_params(axis="y", length=0 if few else 4)
    if not few:
        axes.set_ylabel(f"{len(order):,} devices; those with a verdict are named")
    place = {panel.devices[row]: at for at, row in enumerate(order)}
    for verdict in timeline.verdicts:
        if (device := (verdict.host, verdict.gpu or "")) in place:
            at_s = verdict.time_s - timeline.began_s
            axes.plot(at_s, place[device], "v", color="#ff5a4d", markeredgecolor="white", markersize=9)
    _mark_launches(axes, timeline, "white")
    figure.colorbar(mesh, ax=axes, label=label, pad=0.015, fraction=0.05, aspect=16 if few else 30)
    _time_axis(axes, timeline)
    return figure


def new_figure(height_in: float) -> tuple[Figure, Axes]:
    """Return a figure of the report's width."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def _rows(timeline: Timeline) -> list[_Row]:
    hosts = timeline.hosts
    if len(hosts) <= MAX_ROWS:
        return [_Row(host, (host,)) for host in hosts]
    accused = {verdict.host for verdict in timeline.verdicts}
    excluded = {host for each in timeline.launches for host in each.excluded}
    swapped_in = {host for each in timeline.launches[1:] for host in each.nodes} - {*timeline.launches[0].nodes}
    notable = {hosts[0]} | accused | excluded | swapped_in
    named = [host for host in hosts if host in notable][: MAX_ROWS - 1]
    rest = tuple(host for host in hosts if host not in named)
    return [*(_Row(host, (host,)) for host in named), _Row(f"{len(rest):,} others", rest)]


def _draw_launch(axes: Axes, at: int, row: _Row, number: int, launch: Launch, timeline: Timeline) -> None:
    following = timeline.launches[number + 1] if number + 1 < len(timeline.launches) else None
    end_s = timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s
    began_s = launch.began_s - timeline.began_s
    if any(host in launch.nodes for host in row.hosts):
        colour = LAUNCH_COLOURS[number % len(LAUNCH_COLOURS)]
        axes.barh(at, end_s - launch.began_s, left=began_s, height=0.58, color=colour)
    elif any(host in launch.reserve for host in row.hosts):
        axes.barh(at, end_s - launch.began_s, left=began_s, height=0.22, color=RESERVE)
    if following is not None and any(host in launch.excluded for host in row.hosts) and len(row.hosts) == 1:
        _draw_excluded(axes, at, row.hosts[0], end_s, timeline)


def _draw_excluded(axes: Axes, at: int, host: str, since_s: float, timeline: Timeline) -> None:
    later = (each for each in timeline.launches if each.began_s > since_s)
    until_s = min((each.began_s for each in later if host in (*each.nodes, *each.reserve)), default=timeline.ended_s)
    axes.barh(
        at,
        until_s - since_s,
        left=since_s - timeline.began_s,
        height=0.3,
        facecolor="#f6dcda",
        edgecolor=EXCLUDED,
        hatch="////",
        linewidth=0,
    )


def _mark_verdicts(axes: Axes, timeline: Timeline) -> None:
    for verdict in timeline.verdicts:
        axes.axvline(verdict.time_s - timeline.began_s, color=EXCLUDED, linestyle="--", linewidth=1.2)


def _mark_launches(axes: Axes, timeline: Timeline, colour: str = "#5d6770") -> None:
    for launch in timeline.launches[1:]:
        axes.axvline(launch.began_s - timeline.began_s, color=colour, linewidth=0.9)


def _time_axis(axes: Axes, timeline: Timeline) -> None:
    span_s = max(timeline.ended_s - timeline.began_s, 1e-3)
    axes.set_xlim(0, span_s)
    label_times(axes, span_s, "time since the job began")


def label_times(axes: Axes, span_s: float, label: str) -> None:
    """Label the horizontal axis with round times."""
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= MAX_TICKS), span_s / MAX_TICKS)
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value)))
    axes.set_xlabel(f"{label}, {'min:s' if span_s < 3600 else 'h:min:s'}")


def add_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend below the figure."""
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=min(len(handles), 5),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.4,
    )


def _label(device: DeviceId, accused: set[DeviceId]) -> str:
    host, gpu = device
    return f"{'▶ ' if device in accused else ''}{host} gpu {gpu}"


def _traces(probes: Panel, lines: Sequence[Floats], timeline: Timeline) -> Iterator[tuple[Floats, list[Floats]]]:
    """Yield the points of lines for each launch: a line spans missing readings, but not a relaunch."""
    begins = [launch.began_s for launch in timeline.launches[1:]]
    number = np.searchsorted(begins, probes.times_s, "right")
    read = np.isfinite(lines).all(axis=0)
    for launch in range(len(begins) + 1):
        during = read & (number == launch)
        if during.any():
            yield probes.times_s[during] - timeline.began_s, [line[during] for line in lines]


def _leads(value: float, *digits: int) -> bool:
    return round(value / 10 ** math.floor(math.log10(value))) in digits if value > 0 else False
