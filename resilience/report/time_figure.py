"""The figure of what each launch's time was spent on."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from laggard.resilience.record.effective_time import PART_NAMES, SHOWN_FROM_S, EffectiveTime
from laggard.resilience.record.timeline import Timeline
from laggard.resilience.report.figures import add_legend, label_times, new_figure
from laggard.resilience.text import duration

__all__ = ["time_spent"]

# In the order in which they come within a launch.
_COLOURS: Mapping[str, str] = {
    "relaunch_s": "#d9534a",
    "waiting_s": "#e8a39d",
    "start_s": "#8a939b",
    "repeated_s": "#8e3f9e",
    "effective_s": "#2a6fb0",
    "slow_s": "#cf6a00",
    "unknown_s": "#9db8d2",
    "unsaved_s": "#c9d1d8",
    "lost_s": "#7a1f18",
}
_ROOM_FOR_LABELS = 1.25


def time_spent(timeline: Timeline, times: EffectiveTime) -> Figure:
    """Draw the parts of each launch's time, and of the gap before it."""
    figure, axes = new_figure(1.25 + 0.42 * len(times.launches))
    shown = [name for name in _COLOURS if any(getattr(parts, name) >= SHOWN_FROM_S for parts in times.launches)]
    for at, parts in enumerate(times.launches):
        left_s = 0.0
        for name in shown:
            axes.barh(at, getattr(parts, name), left=left_s, height=0.62, color=_COLOURS[name])
            left_s += getattr(parts, name)
        label = "" if times.ratio is None else f"{duration(parts.effective_s)} effective"
        axes.annotate(label, (left_s, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(times.launches)), [f"launch {launch.number}" for launch in timeline.launches])
    axes.set_ylim(len(times.launches) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    longest_s = max((parts.total_s for parts in times.launches), default=1.0)
    axes.set_xlim(0, max(longest_s, 1e-3) * _ROOM_FOR_LABELS)
    label_times(axes, longest_s, "duration")
    add_legend(figure, [Patch(color=_COLOURS[name], label=PART_NAMES[name]) for name in shown])
    return figure
