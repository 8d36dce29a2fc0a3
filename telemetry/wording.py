"""What telemetry says of events: in Grafana, on the page, in a report. Nothing reads these texts back."""

from __future__ import annotations

from laggard.node_names import joined
from laggard.telemetry.events import Event


def event(of: Event) -> str:
    """Return what happened, in one sentence."""
    match of.kind:
        case "launch":
            return f"launch {of.launch} began on {joined(of.nodes)}"
        case "launch-end":
            return f"launch {of.launch} ended: {of.text}"
        case "verdict" if of.severity:
            cause = f"; likely cause: {of.cause}" if of.cause else ""
            return f"{of.text}{cause} ({of.severity}, {of.action})"
    return of.text
