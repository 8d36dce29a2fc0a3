"""The report's pictures: each figure with its title and caption, as SVG for the page and as a PNG file beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from laggard.resilience.report import figures
from laggard.resilience.report.costs import Costs
from laggard.resilience.report.inputs import ReportInputs
from laggard.resilience.report.time_figure import time_spent
from laggard.resilience.text import counted

__all__ = ["Picture", "draw_pictures"]

DPI = 140


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as the template shows it."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class _Section:
    """A figure with its file name, its heading and its caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_pictures(inputs: ReportInputs, costs: Costs, folder: Path) -> Mapping[str, Picture]:
    """Draw the pictures and write their PNG files to the folder; return them by name.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    with mpl.rc_context(figures.STYLE):
        return {
            each.name: Picture(each.title, each.caption, _drawn(each.figure, each.name, folder))
            for each in _sections(inputs, costs)
        }


def _sections(inputs: ReportInputs, costs: Costs) -> list[_Section]:
    timeline = inputs.timeline
    sections = []
    if timeline.launches:
        n_launches = counted(len(timeline.launches), "launch", "launches")
        caption = f"{n_launches} on {counted(len(timeline.hosts), 'node', 'nodes')}."
        sections.append(_Section("timeline", "Timeline", caption, figures.node_timeline(timeline)))
    for number, panel in enumerate(inputs.probes, start=1):
        name = "probes" if number == 1 else f"probes-{number}"
        title = "Probe times" if panel.in_seconds else panel.metric
        caption = (
            f"{panel.metric} of {counted(len(panel.devices), 'device', 'devices')}: devices with a verdict "
            "against the range of all others. Dashed lines mark verdicts."
        )
        sections.append(_Section(name, title, caption, figures.probe_times(timeline, panel)))
    if inputs.utilization is not None:
        n_devices = counted(len(inputs.utilization.devices), "device", "devices")
        caption = f"One row for each of {n_devices}; grey: no reading."
        figure = figures.heat_map(timeline, inputs.utilization, "utilisation, %")
        sections.append(_Section("utilization", "Utilisation", caption, figure))
    if timeline.launches:
        caption = "What each launch's time was spent on, and that of the relaunch before it."
        sections.append(_Section("time-spent", "Where the time went", caption, time_spent(timeline, costs.times)))
    return sections


def _drawn(figure: Figure, name: str, folder: Path) -> Markup:
    """Write the figure's PNG file, and return its SVG for the page."""
    figure.savefig(folder / f"{name}.png", dpi=DPI)
    (folder / f"{name}.png").chmod(0o600)
    figure.set_layout_engine("none")  # the layout is done; computing it again takes as long as drawing
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # The page holds several figures, and each id must be unique in it.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", svg)
    return Markup(re.sub(r"<svg ", '<svg aria-hidden="true" ', svg, count=1))  # noqa: S704 - matplotlib escapes text
