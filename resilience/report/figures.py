"""The report's pictures. Each takes what happened and returns a figure; none of them reads or writes anything."""

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

from kvstore.timeseries import Floats
from resilience.record.story import Launch, Story, natural
from resilience.record.words import clock, duration
from resilience.report.costs import Costs
from resilience.report.panel import Device, Panel, percentile

__all__ = ["STYLE", "heat_map", "lost_time", "probe_times", "timeline"]

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
# Told apart by the colour-blind, and each with a contrast of 3 or more on white.
LAUNCH_COLOURS = ("#2a6fb0", "#1b8578", "#7a5bb5", "#8a6d1f")
RESERVE, EXCLUDED, GAP, SLOW, BAND, QUIET = "#c9d1d8", "#c8372d", "#d9534a", "#cf6a00", "#9db8d2", "#7d98b3"
ACCUSED = ("#c8372d", "#cf6a00", "#8e3f9e", "#8a6d1f", "#1b8578", "#b0307a")
NOTHING = "#e6eaed"
WIDTH_IN = 9.6
MAX_ROWS = 24
MAX_LINES = 16
MAX_LABELS = 32
MAX_TICKS = 9
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 12 * 3600, 86_400)


@dataclass(frozen=True, slots=True)
class _Bars:
    """What a row of the timeline shows."""

    label: str
    hosts: tuple[str, ...]


def timeline(story: Story) -> Figure:
    """Draw which node did what in which launch, what was excluded, and the verdicts."""
    rows = _rows(story)
    figure, axes = _figure(1.3 + 0.36 * len(rows))
    for at, row in enumerate(rows):
        for number, launch in enumerate(story.launches):
            _draw_launch(axes, at, row, number, launch, story)
        for finding in story.findings:
            if finding.host in row.hosts:
                axes.plot(finding.time_s - story.began_s, at - 0.42, "v", color=EXCLUDED, markersize=8, clip_on=False)
    for before, launch in zip(story.launches, story.launches[1:], strict=False):
        start_s = before.ended_s - story.began_s
        axes.axvspan(start_s, launch.began_s - story.began_s, color=GAP, alpha=0.28, linewidth=0)
    for number, launch in enumerate(story.launches):
        colour = LAUNCH_COLOURS[number % len(LAUNCH_COLOURS)]
        at_s = launch.began_s - story.began_s
        axes.text(at_s, -0.72, f"launch {launch.number}", color=colour, fontsize=9, fontweight="bold")
    axes.set_ylim(len(rows) - 0.4, -0.95)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.tick_params(axis="y", length=0)
    _time_axis(axes, story)
    _legend(
        figure,
        [
            Patch(color=LAUNCH_COLOURS[0], label="in use"),
            Patch(color=RESERVE, label="reserve"),
            Patch(facecolor="#f6dcda", edgecolor=EXCLUDED, hatch="////", linewidth=0, label="left out"),
            Patch(color=GAP, alpha=0.28, label="relaunch"),
            Line2D([], [], color=EXCLUDED, marker="v", linestyle="", markersize=8, label="verdict"),
        ],
    )
    return figure


def probe_times(story: Story, probes: Panel) -> Figure:
    """Draw the accused devices' readings against the band of all others, and the moment of each verdict."""
    figure, axes = _figure(3.9)
    unit, scale = (", ms", 1000.0) if probes.in_seconds else ("", 1.0)
    accused = list(dict.fromkeys((finding.host, finding.gpu or "") for finding in story.findings))
    others = [row for row in range(len(probes.devices)) if probes.devices[row] not in accused]
    values = probes.values * scale
    handles: list[Any] = []
    if others:
        quantiles = [percentile(values[others], percent) for percent in (5, 50, 95)]
        for times, (low, middle, high) in _traces(probes, quantiles, story):
            axes.fill_between(times, low, high, color=BAND, alpha=0.55, linewidth=0)
            axes.plot(times, middle, color=LAUNCH_COLOURS[0], linewidth=1.6)
        handles += [
            Line2D([], [], color=LAUNCH_COLOURS[0], label=f"median of {len(others):,} others"),
            Patch(color=BAND, alpha=0.55, label="5 % to 95 % of them"),
        ]
    for row in others if len(others) <= MAX_LINES else ():
        for times, (trace,) in _traces(probes, [values[row]], story):
            axes.plot(times, trace, color=QUIET, linewidth=0.7, alpha=0.8)
    for number, row in enumerate(probes.rows(accused[: len(ACCUSED)])):
        host, gpu = probes.devices[row]
        label = f"{host} gpu {gpu}" if gpu else host
        for times, (trace,) in _traces(probes, [values[row]], story):
            axes.plot(times, trace, "o-", color=ACCUSED[number], linewidth=1.6, markersize=3)
        handles.append(Line2D([], [], color=ACCUSED[number], marker="o", markersize=3, label=label))
    _mark_verdicts(axes, story)
    _mark_launches(axes, story)
    finite = values[np.isfinite(values) & (values > 0)]
    if len(finite) and np.max(finite) > 4 * np.median(finite):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if _leads(value, 2, 5) else ""))
    axes.set_ylabel(f"{probes.metric}{unit}")
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    _time_axis(axes, story)
    if story.findings:
        handles.append(Line2D([], [], color=EXCLUDED, linestyle="--", linewidth=1.2, label="verdict"))
    _legend(figure, handles)
    return figure


def heat_map(story: Story, panel: Panel, label: str) -> Figure:
    """Draw one metric of all devices, a row each."""
    order = sorted(range(len(panel.devices)), key=lambda row: tuple(natural(part) for part in panel.devices[row]))
    few = len(order) <= MAX_LABELS
    figure, axes = _figure(1.3 + (0.24 * len(order) if few else 5.2))
    edges_s = panel.edges_s - story.began_s
    mesh = axes.imshow(
        np.ma.masked_invalid(panel.values[order]),
        aspect="auto",
        interpolation="none",
        cmap=mpl.colormaps["cividis"].with_extremes(bad=NOTHING),
        vmin=0,
        vmax=100,
        extent=(edges_s[0], edges_s[-1], len(order) - 0.5, -0.5),
    )
    axes.set_facecolor(NOTHING)
    accused = {(finding.host, finding.gpu or "") for finding in story.findings}
    shown = [at for at, row in enumerate(order) if few or panel.devices[row] in accused]
    labels = [_label(panel.devices[order[at]], accused) for at in shown]
    axes.set_yticks(shown, labels, fontsize=9)
    for text, at in zip(axes.get_yticklabels(), shown, strict=True):
        if panel.devices[order[at]] in accused:
            text.set_color(EXCLUDED)
    axes.tick_params(axis="y", length=0 if few else 4)
    if not few:
        axes.set_ylabel(f"{len(order):,} devices; those with a verdict by name")
    place = {panel.devices[row]: at for at, row in enumerate(order)}
    for finding in story.findings:
        if (device := (finding.host, finding.gpu or "")) in place:
            at_s = finding.time_s - story.began_s
            axes.plot(at_s, place[device], "v", color="#ff5a4d", markeredgecolor="white", markersize=9)
    _mark_launches(axes, story, "white")
    figure.colorbar(mesh, ax=axes, label=label, pad=0.015, fraction=0.05, aspect=16 if few else 30)
    _time_axis(axes, story)
    return figure


def lost_time(story: Story, costs: Costs) -> Figure:
    """Draw what each launch's time went into."""
    figure, axes = _figure(1.25 + 0.42 * len(story.launches))
    for at, (ran_s, slow_s, relaunch_s) in enumerate(zip(costs.ran_s, costs.slow_s, costs.relaunch_s, strict=True)):
        parts = ((relaunch_s, GAP), (ran_s - slow_s, LAUNCH_COLOURS[0]), (slow_s, SLOW))
        left_s = 0.0
        for length_s, colour in parts:
            axes.barh(at, length_s, left=left_s, height=0.62, color=colour)
            left_s += length_s
        words = [f"{duration(slow_s)} slow"] if slow_s >= 0.05 else []
        words += [f"{duration(relaunch_s)} to relaunch"] if relaunch_s >= 0.05 else []
        axes.annotate(
            ", ".join(words), (left_s, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(range(len(story.launches)), [f"launch {launch.number}" for launch in story.launches])
    axes.set_ylim(len(story.launches) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    longest_s = max((a + b for a, b in zip(costs.ran_s, costs.relaunch_s, strict=True)), default=1.0)
    axes.set_xlim(0, max(longest_s, 1e-3) * 1.32)
    _label_times(axes, longest_s, "time of the launch")
    _legend(
        figure,
        [
            Patch(color=LAUNCH_COLOURS[0], label="at full pace"),
            Patch(color=SLOW, label="waiting for a slow device, at most"),
            Patch(color=GAP, label="relaunch"),
        ],
    )
    return figure


def _figure(height_in: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def _rows(story: Story) -> list[_Bars]:
    hosts = story.hosts
    if len(hosts) <= MAX_ROWS:
        return [_Bars(host, (host,)) for host in hosts]
    told = {finding.host for finding in story.findings} | {host for each in story.launches for host in each.left_out}
    came = {host for each in story.launches[1:] for host in each.nodes if host not in story.launches[0].nodes}
    named = [host for host in hosts if host == hosts[0] or host in told or host in came][: MAX_ROWS - 1]
    rest = tuple(host for host in hosts if host not in named)
    return [*(_Bars(host, (host,)) for host in named), _Bars(f"{len(rest):,} others", rest)]


def _draw_launch(axes: Axes, at: int, row: _Bars, number: int, launch: Launch, story: Story) -> None:
    following = story.launches[number + 1] if number + 1 < len(story.launches) else None
    end_s = story.ended_s if math.isnan(launch.ended_s) else launch.ended_s
    begin = launch.began_s - story.began_s
    if any(host in launch.nodes for host in row.hosts):
        colour = LAUNCH_COLOURS[number % len(LAUNCH_COLOURS)]
        axes.barh(at, end_s - launch.began_s, left=begin, height=0.58, color=colour)
    elif any(host in launch.reserve for host in row.hosts):
        axes.barh(at, end_s - launch.began_s, left=begin, height=0.22, color=RESERVE)
    if following is not None and any(host in launch.left_out for host in row.hosts) and len(row.hosts) == 1:
        _draw_left_out(axes, at, row.hosts[0], end_s, story)


def _draw_left_out(axes: Axes, at: int, host: str, since_s: float, story: Story) -> None:
    later = (each for each in story.launches if each.began_s > since_s)
    until_s = min((each.began_s for each in later if host in (*each.nodes, *each.reserve)), default=story.ended_s)
    axes.barh(
        at,
        until_s - since_s,
        left=since_s - story.began_s,
        height=0.3,
        facecolor="#f6dcda",
        edgecolor=EXCLUDED,
        hatch="////",
        linewidth=0,
    )


def _mark_verdicts(axes: Axes, story: Story) -> None:
    for finding in story.findings:
        axes.axvline(finding.time_s - story.began_s, color=EXCLUDED, linestyle="--", linewidth=1.2)


def _mark_launches(axes: Axes, story: Story, colour: str = "#5d6770") -> None:
    for launch in story.launches[1:]:
        axes.axvline(launch.began_s - story.began_s, color=colour, linewidth=0.9)


def _time_axis(axes: Axes, story: Story) -> None:
    span_s = max(story.ended_s - story.began_s, 1e-3)
    axes.set_xlim(0, span_s)
    _label_times(axes, span_s, "time since the job began")


def _label_times(axes: Axes, span_s: float, words: str) -> None:
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= MAX_TICKS), span_s / MAX_TICKS)
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value)))
    axes.set_xlabel(f"{words}, {'min:s' if span_s < 3600 else 'h:min:s'}")


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=min(len(handles), 5),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.4,
    )


def _label(device: Device, accused: set[Device]) -> str:
    host, gpu = device
    return f"{'▶ ' if device in accused else ''}{host} gpu {gpu}"


def _traces(probes: Panel, lines: Sequence[Floats], story: Story) -> Iterator[tuple[Floats, list[Floats]]]:
    """Yield the points of lines that belong together, launch by launch: across what was not read, but not further."""
    begins = [launch.began_s for launch in story.launches[1:]]
    number = np.searchsorted(begins, probes.times_s, "right")
    read = np.isfinite(lines).all(axis=0)
    for launch in range(len(begins) + 1):
        there = read & (number == launch)
        if there.any():
            yield probes.times_s[there] - story.began_s, [line[there] for line in lines]


def _leads(value: float, *digits: int) -> bool:
    return round(value / 10 ** math.floor(math.log10(value))) in digits if value > 0 else False
