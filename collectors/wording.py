"""Puts what collectors report into words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard.collectors.causes import Cause


def cause(found: Cause) -> str:
    """Return a cause as a verdict gives it."""
    return found.detail or found.kind
