"""The judge: turns rounds of readings of any kind into verdicts that say whether to restart.

What differs between kinds of readings is an :class:`Analysis`.
A new kind is one analysis, and one watcher that has a judge of it.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from laggard.collectors.device import DeviceId
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.evidence import Reason
from laggard.detectors.judging.history_store import HistoryStore, SectionKeeper
from laggard.detectors.judging.rounds import Round
from laggard.detectors.notices import Notice
from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import LaunchRecord, PhaseRecord, Signs

# A process that is killed in a phase never says that it is over.
LONGEST_PHASE_S = 3600.0


class DeclaredPhases:
    """The phases that processes of a launch have declared, from round to round."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[PhaseRecord, float]] = {}  # by process, and when it was first seen so

    def hosts(self, phases: Mapping[str, PhaseRecord], now_s: float) -> frozenset[str]:
        """Return the nodes on which a process is in a phase, or has been since the last call."""
        found = set()
        for process, phase in phases.items():
            seen, since_s = self._seen.get(process, (None, now_s))
            if phase != seen:
                since_s = now_s
                self._seen[process] = phase, now_s
            goes_on = phase.running and now_s - since_s <= LONGEST_PHASE_S
            if goes_on or phase != seen:
                found.add(phase.host)
        return frozenset(found)


_log = logging.getLogger("laggard.detectors")

ReadSigns = Callable[[], Signs | None]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a round is judged (Unix time), which nodes a phase hides, and whether the program has made progress."""

    now_s: float
    hidden: frozenset[str] = frozenset()
    has_progress: bool = False


class Analysis(Protocol):
    """One kind of reading: compares it, and says whom a finding accuses and what speaks against a restart."""

    holds_up: bool = True  # whether the job waits for devices for which no restart is made

    def begin(self, launch: LaunchRecord) -> None:
        """Prepare for a launch."""
        del launch

    @abstractmethod
    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record the tags of a device; called with its first sample, and whenever they change."""

    @abstractmethod
    def update(self, readings: Round, moment: Moment) -> list[Verdict] | None:
        """Take a round, without hidden nodes, and return what is new in the evidence; ``None``: nothing was judged."""

    @abstractmethod
    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in; ``None`` if it is well."""

    @property
    @abstractmethod
    def min_slowdown(self) -> float:
        """The smallest slowdown that matters."""

    def judged(self, readings: Round) -> Collection[DeviceId]:
        """Return the devices that were judged in this round."""
        return readings.keys()

    def identities(self) -> Mapping[DeviceId, str]:
        """Return the names of devices that stay with them when they move."""
        return {}

    def certain(self) -> list[Verdict]:
        """Return new verdicts that need no weighing: what is broken, and not slow."""
        return []

    def why_not(self, verdict: Verdict) -> Reason | None:
        """Return why no restart should be made for a verdict, whatever it costs."""
        del verdict
        return None

    def decided(self, weighed: Sequence[Verdict]) -> list[Verdict]:
        """Take the round's verdicts; return earlier ones that are to be said again, since their reason has changed."""
        del weighed
        return []

    def named(self, verdict: Verdict) -> Verdict:
        """Return a verdict with whom it accuses and the likely cause."""
        return verdict

    def take_notices(self) -> Sequence[Notice]:
        """Return what else the rounds show, each thing once: nothing for which a device is to blame."""
        return ()

    def has_more_to_keep(self) -> bool:
        """Return whether something was learned that should be kept, though there is no verdict."""
        return False

    def to_state(self) -> dict[str, Any]:
        """Return what the next launch should know, as plain values."""
        return {}

    def restore(self, kept: Mapping[str, Any], *, same_run: bool) -> None:
        """Continue with what :meth:`to_state` returned in an earlier launch, of the same job or of another one."""
        del kept, same_run


class Judge:
    """Judges rounds by an analysis."""

    def __init__(
        self, analysis: Analysis, restarts: Restarts, keeper: HistoryStore | SectionKeeper | None = None, key: str = ""
    ) -> None:
        self._analysis = analysis  # compares the readings
        self.restarts = restarts  # weighs what slow devices cost
        # Where what is known is kept from launch to launch, and under which name; an empty one: nowhere
        self._keeper = keeper or HistoryStore(None)
        self._key = key
        self._phases = DeclaredPhases()
        self._read_signs: ReadSigns = lambda: None
        self._run = ""
        self._has_read = False
        self._now_s = 0.0

    def begin(self, launch: LaunchRecord, run: str = "", read_signs: ReadSigns = lambda: None) -> None:
        """Prepare for a launch."""
        self._run, self._read_signs = run, read_signs
        self._analysis.begin(launch)
        self.restarts.begin(launch)

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record what the tags of a device's samples say."""
        self._analysis.note_device(device, tags)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        now_s = self._now_s = now_s if math.isfinite(now_s) else self._now_s
        if not self._has_read:
            self._read_kept(now_s)
        moment = self._moment(now_s)
        readings = {device: values for device, values in readings.items() if device[0] not in moment.hidden}
        found = self._analysis.update(readings, moment)
        certain, weighed = self._analysis.certain(), [] if found is None else self._weighed(found, readings, now_s)
        verdicts = [*certain, *weighed, *self._analysis.decided(weighed)]
        if certain or weighed or self._analysis.has_more_to_keep():
            self.keep()
        return [self._analysis.named(verdict) for verdict in verdicts]

    def _moment(self, now_s: float) -> Moment:
        signs = self._read_signs()
        if signs is None:
            return Moment(now_s)
        hidden = self._phases.hosts(signs.phases, now_s)
        self.restarts.note_signs(signs, now_s)
        return Moment(now_s, hidden, self.restarts.has_progress)

    def _weighed(self, found: Sequence[Verdict], readings: Round, now_s: float) -> list[Verdict]:
        analysis = self._analysis
        grounds = Grounds(
            analysis.episode, analysis.identities(), analysis.min_slowdown, analysis.why_not, analysis.holds_up
        )
        return self.restarts.weigh(found, grounds, analysis.judged(readings), now_s)

    def take_notices(self) -> Sequence[Notice]:
        """Return what else the rounds show, each thing once: nothing for which a device is to blame."""
        return self._analysis.take_notices()

    # -- what is kept --------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Write what is known to the state: seldom, since each time takes the state server some time."""
        if self._key and self._has_read:
            analysis, restarts = self._analysis.to_state(), self.restarts.to_state()
            self._keeper.write(self._key, {"run": self._run, "analysis": analysis, "restarts": restarts})

    def _read_kept(self, now_s: float) -> None:
        """Read what was kept; done in the first round, when the devices' names are known."""
        self._has_read = True
        kept = self._keeper.read(self._key) if self._key else None
        if kept is None:
            return
        try:
            same_run = kept["run"] == self._run
            self._analysis.restore(kept["analysis"], same_run=same_run)
            self.restarts.restore(kept["restarts"], now_s, same_run=same_run)
        except Exception as error:  # noqa: BLE001 - the program's State may hold anything
            _log.warning("%s cannot be read, so it starts afresh: %s", self._key, error)
