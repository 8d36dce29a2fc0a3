"""The page: figures as SVG in the HTML itself, the same as PNG files beside it. Nothing is fetched from anywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import matplotlib as mpl
from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

from kvstore.endpoint import write_private
from resilience.record.story import Story
from resilience.record.words import clock, duration, some
from resilience.report import figures
from resilience.report.costs import Costs, costs_of
from resilience.report.panel import Panel

__all__ = ["PAGE_FILE", "Material", "write_report"]

PAGE_FILE = "report.html"
DPI = 140
MAX_LINES = 500


@dataclass(frozen=True, slots=True)
class Material:
    """What a report is made of: what happened, what was probed, and how busy the devices were."""

    story: Story
    probes: tuple[Panel, ...] = ()
    utilization: Panel | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page: its name, its heading, what it shows in words, and itself."""

    name: str
    title: str
    caption: str
    svg: Markup


def write_report(material: Material, folder: Path) -> Path:
    """Write the page and its pictures to a folder that is there; return the page's path.

    Raises
    ------
    OSError
        If that cannot be done.
    """
    costs = costs_of(material.story, material.probes[0] if material.probes else None)
    with mpl.rc_context(figures.STYLE):
        pictures = [
            Picture(name, title, caption, _drawn(figure, name, folder))
            for name, title, caption, figure in _figures(material, costs)
        ]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=duration, some=some)
    template = environment.from_string(files("resilience.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    story = material.story
    page = template.render(
        story=story,
        costs=costs,
        pictures={picture.name: picture for picture in pictures},
        headline=_headline(story),
        sources=_sources(material),
        began=_moment(story.began_s),
        ended=_moment(story.ended_s),
        at=lambda time_s: clock(time_s - story.began_s),
        finding_of={launch.number: story.finding_against(launch) for launch in story.launches},
        lines=story.lines[-MAX_LINES:],
        left_out_lines=max(0, len(story.lines) - MAX_LINES),
        version=version("laggard"),
    )
    path = folder / PAGE_FILE
    write_private(path, page)
    return path


def _figures(material: Material, costs: Costs) -> list[tuple[str, str, str, Figure]]:
    story = material.story
    found = []
    if story.launches:
        caption = f"{_count(len(story.launches), 'launch', 'launches')} on {_count(len(story.hosts), 'node', 'nodes')}."
        found.append(("timeline", "Launches and exclusions", caption, figures.timeline(story)))
    for number, panel in enumerate(material.probes, start=1):
        name = "probes" if number == 1 else f"probes-{number}"
        title = "Probe times" if panel.in_seconds else panel.metric
        caption = (
            f"{panel.metric} of {_count(len(panel.devices), 'device', 'devices')}: "
            "each accused device against the band of the others; a dashed line is the moment of a verdict."
        )
        found.append((name, title, caption, figures.probe_times(story, panel)))
    if material.utilization is not None:
        panel = material.utilization
        caption = f"Each row is one of {_count(len(panel.devices), 'device', 'devices')}; grey: no reading."
        figure = figures.heat_map(story, panel, "utilisation, %")
        found.append(("utilization", "Utilisation", caption, figure))
    if story.launches:
        caption = "How much of each launch was full pace, waiting for a slow device, and the way to the next launch."
        found.append(("lost-time", "Lost time", caption, figures.lost_time(story, costs)))
    return found


def _drawn(figure: Figure, name: str, folder: Path) -> Markup:
    """Write the figure's PNG, and return its SVG to stand in the page."""
    figure.savefig(folder / f"{name}.png", dpi=DPI)
    (folder / f"{name}.png").chmod(0o600)
    figure.set_layout_engine("none")  # it is laid out now; to do so again takes as long as the drawing
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Several figures stand in one page, and each id may be there only once.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", svg)
    return Markup(re.sub(r"<svg ", '<svg aria-hidden="true" ', svg, count=1))  # noqa: S704 - matplotlib escapes text


def _headline(story: Story) -> str:
    gone = list(dict.fromkeys(host for launch in story.launches for host in launch.left_out))
    said = f"{_count(len(story.launches), 'launch', 'launches')}"
    said += f"; left out: {some(gone)}" if gone else ", no node left out"
    if story.exit_code is None:
        return f"{said}; no word of its end"
    return f"{said}; exit code {story.exit_code}"


def _sources(material: Material) -> Sequence[str]:
    missing = []
    if not material.probes:
        missing.append("No probe times: the program ran no detector.")
    if material.utilization is None:
        missing.append("No utilisation: run with --telemetry-level=3 to have it.")
    return missing


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
