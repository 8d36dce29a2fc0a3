"""Verdicts: severity, action and likely cause of a finding against a device or node, and the text that explains it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from laggard.collectors.causes import UNKNOWN

if TYPE_CHECKING:
    from laggard.collectors.device import DeviceId

Severity = Literal["suspect", "slow", "very slow", "faulty", "well again"]
Action = Literal["report", "restart"]

_TIMES_FROM = 3.0  # "15.4 times as slow" reads better than "1440 % slower"


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """A detector's finding against one device or one whole node, as it is stored and printed.

    Attributes
    ----------
    host
        Host name of the node.
    gpu
        The device's name on its node, as text; ``None`` accuses the whole node.
    slowdown
        Reading divided by its reference: 1.2 is 20 % slower.
    severity
        ``suspect``, ``slow`` or ``very slow``; ``faulty`` if it computes wrong results; ``well again`` if it was slow
        and is no longer.
    evidence
        One sentence with the numbers that the verdict is based on.
    cause
        The likely cause in a few words, or ``unknown``.
    action
        ``restart`` asks for a relaunch without the node, ``report`` does not.
    own_past
        Whether it has become slower than it was; if not, it may have been so from the start.
    at_times
        Whether it is slow again and again, and well in between.
    """

    host: str
    gpu: str | None
    slowdown: float
    severity: Severity
    evidence: str
    cause: str = "unknown"
    action: Action = "report"
    own_past: bool = False
    at_times: bool = False

    def __repr__(self) -> str:
        return f"<Verdict: {self.evidence} ({self.severity}, likely cause: {self.cause}, action: {self.action})>"

    @classmethod
    def of_fault(cls, host: str, gpu: str, what: str) -> Verdict:
        """Return the verdict on a device that computes wrong results; that is certain, so no evidence is weighed."""
        return cls(host, gpu, math.nan, "faulty", f"{host} gpu {gpu}: {what}", action="restart")

    def to_json(self) -> str:
        """Return the verdict as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Verdict:
        """Parse the text that :meth:`to_json` returned."""
        return cls(**json.loads(text))


def moment(time_s: float, now_s: float) -> str:
    """Return the time of day, after its date if that is not today's."""
    moment = datetime.fromtimestamp(time_s, UTC)
    is_today = math.isfinite(now_s) and moment.date() == datetime.fromtimestamp(now_s, UTC).date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


def how_slow(slowdown: float) -> str:
    """Return a slowdown before its reference: ``9.8 times as slow as``, ``12 % slower than``."""
    if slowdown >= _TIMES_FROM:
        return f"{slowdown:.1f} times as slow as"
    percent = 100 * (slowdown - 1)
    return f"{percent:.{int(percent < 10)}f} % slower than"


def peers(number: int) -> str:
    """Return a number of peers with its noun: ``only peer``, ``3 peers``."""
    return "only peer" if number == 1 else f"{number} peers"


def plural(rounds: int) -> str:
    """Return a number of rounds with its noun."""
    return f"{rounds} round" if rounds == 1 else f"{rounds} rounds"


def short(number: float) -> str:
    """Return a small or large number with two digits: ``1e-4``, ``2.4e6``."""
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def with_cause(verdict: Verdict, causes: Mapping[DeviceId, str]) -> Verdict:
    """Return the verdict with its likely cause; ``causes`` are by device."""
    if verdict.gpu is not None:
        return replace(verdict, cause=causes.get((verdict.host, verdict.gpu), UNKNOWN))
    of_node = [cause for (host, _), cause in causes.items() if host == verdict.host]
    kinds = Counter(_kind(cause) for cause in of_node if cause != UNKNOWN)
    if not kinds:
        return verdict
    kind, count = kinds.most_common(1)[0]
    cause = next(cause for cause in of_node if _kind(cause) == kind)
    return replace(verdict, cause=f"{cause} (as on {count} of its {len(of_node)} devices)")


def _kind(cause: str) -> str:
    return cause.partition(":")[0]
