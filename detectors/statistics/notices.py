"""Notices: what a user should know about the readings though no device is to blame for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.common_mode import Shift

__all__ = ["of_lasting_noise", "of_noise", "of_shift"]


def of_shift(shift: Shift, devices: Sequence[DeviceId], n_all: int) -> str:
    """Say that a whole group became slower or faster."""
    how = f"{100 * abs(shift.ratio - 1):.0f} % {'slower' if shift.ratio > 1 else 'faster'} than before"
    since = ""
    if math.isfinite(shift.since_s):
        since = f" since {datetime.fromtimestamp(shift.since_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{_group(devices, n_all)} are {how}{since}: no single device is at fault"


def of_lasting_noise(runs: int, mean_rounds: float, devices: Sequence[DeviceId], n_all: int) -> str:
    """Say that healthy devices are slow for several rounds on end, so that verdicts take longer."""
    return (
        f"{_group(devices, n_all)}: disturbances last ({runs} of them ended by themselves, "
        f"after {mean_rounds:.1f} rounds on average), so a verdict takes more rounds than usual"
    )


def of_noise(noise: float, allowed: float, devices: Sequence[DeviceId], n_all: int, *, lasts: bool) -> str:
    """Say that small slowdowns cannot be told from noise, or only late if it does not last."""
    how, when = ("wander", "over many rounds") if lasts else ("scatter", "from round to round")
    least = f"{100 * math.expm1(allowed):.0f} %"
    limit = f"only a slowdown by more than {least} can be told from noise"
    if not lasts:
        limit = f"a slowdown by less than {least} is found late, or not at all"
    return f"{_group(devices, n_all)}: readings {how} by {100 * noise:.1f} % {when}, so {limit}"


def _group(devices: Sequence[DeviceId], n_all: int) -> str:
    if len(devices) == n_all:
        return f"all {n_all} devices"
    host, gpu = devices[0]
    return f"the {len(devices)} devices like {host} gpu {gpu}"
