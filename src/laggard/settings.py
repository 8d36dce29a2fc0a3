"""Settings that a user gives, which may be of any type."""

from __future__ import annotations

import math
from numbers import Real


def number(value: object) -> float:
    """Return a setting as a finite number; NaN, which is in no range, if it is none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan
