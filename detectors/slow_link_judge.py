"""What :class:`laggard.detectors.SlowLinkDetector` keeps on the primary: it turns rounds of links into verdicts."""

from __future__ import annotations

import logging
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from laggard.collectors.causes import UNKNOWN
from laggard.collectors.device import DeviceId
from laggard.collectors.links.collector import LinkReport
from laggard.collectors.links.prober import FIRST_BYTES, bytes_for
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.symptoms import LinkSymptoms, cause_of_link, together
from laggard.detectors.declared_phases import DeclaredPhases
from laggard.detectors.keeping import Keeper
from laggard.detectors.link_episodes import LinkEpisodes
from laggard.detectors.link_flows import MOST_FOREIGN
from laggard.detectors.link_losses import LinkLosses
from laggard.detectors.link_verdict import LinkVerdict
from laggard.detectors.restart_judge import Grounds, RestartJudge
from laggard.detectors.rounds import Round
from laggard.detectors.slow_link_analysis import SlowLinkAnalysis
from laggard.detectors.verdict import Action, Severity, Verdict
from laggard.kvstore.control import LaunchRecord, Signs

__all__ = ["SlowLinkJudge"]

_log = logging.getLogger("laggard.detectors")

KEPT = "laggard/slow-links"
"""The key of State."""
VERY_SLOW = 1.33
_CAUSE_ROUNDS = 12
_MAX_CALIBRATIONS = 3


class SlowLinkJudge:
    """Judges the rounds of links, and asks for restarts that are worth it.

    Parameters
    ----------
    analysis
        Finds slow links.
    restarts
        Weighs what a slow node costs.
    keeper
        Keeps the incidents from launch to launch.
    min_slowdown
        The smallest slowdown that matters.
    tell_bytes
        Tells the nodes how many bytes a transfer has from now on.
    """

    def __init__(
        self,
        analysis: SlowLinkAnalysis,
        restarts: RestartJudge,
        keeper: Keeper,
        min_slowdown: float,
        tell_bytes: Callable[[int], None],
    ) -> None:
        self._analysis = analysis
        self._restarts = restarts
        self._keeper = keeper
        self._min_slowdown = min_slowdown
        self._tell_bytes = tell_bytes
        self._read_signs: Callable[[], Signs | None] = lambda: None
        self._run = ""
        self._phases = DeclaredPhases()
        self._episodes = LinkEpisodes(min_slowdown)
        self._losses = LinkLosses()
        self._n_bytes, self._calibrations = FIRST_BYTES, 0
        self._reports: list[tuple[str, LinkReport]] = []
        self._symptoms: dict[str, deque[LinkSymptoms]] = defaultdict(lambda: deque(maxlen=_CAUSE_ROUNDS))
        self._judged_s: deque[float] = deque(maxlen=_CAUSE_ROUNDS + 1)
        self._notices: list[str] = []

    def begin(
        self, launch: LaunchRecord, run: str, now_s: float, read_signs: Callable[[], Signs | None] = lambda: None
    ) -> None:
        """Prepare for a launch; as for :class:`SlowGPUJudge`."""
        self._run, self._read_signs = run, read_signs
        self._restarts.begin(launch)
        self._judged_s.append(now_s)
        kept = self._keeper.read(KEPT)
        if kept is not None:
            try:
                self._restarts.restore(kept["restarts"], now_s, same_run=kept["run"] == run)
            except (KeyError, ValueError) as error:
                _log.warning("the incidents of links cannot be read: %s", error)

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Take a node's report; each has tags of its own."""
        report = LinkReport.of_tags(tags)
        self._reports.append((device[0], report))
        self._symptoms[device[0]].append(report.symptoms)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with what the nodes have reported since the last call."""
        del readings  # the reports say more
        reports, self._reports = self._reports, []
        self._judged_s.append(now_s)
        signs = self._read_signs()
        hidden = frozenset[str]()
        if signs is not None:
            self._restarts.note_signs(signs, self._keeper.commits, now_s)
            hidden = self._phases.hosts(signs.phases, now_s)
        by_round: dict[int, list[LinkReading]] = defaultdict(list)
        for _, report in reports:
            for reading in report.readings:
                if reading.n_bytes == self._n_bytes and hidden.isdisjoint((reading.sender, reading.receiver)):
                    by_round[reading.round].append(reading)
        lost = self._lost(reports)
        if not self._is_calibrated([each for found in by_round.values() for each in found]):
            return lost
        found = [verdict for number in sorted(by_round) for verdict in self._judge_round(by_round[number])]
        judged = {
            (host, "") for readings in by_round.values() for each in readings for host in (each.sender, each.receiver)
        }
        grounds = Grounds(lambda device: self._episodes.of(device[0]), min_slowdown=self._min_slowdown)
        weighed = self._restarts.weigh(found, grounds, judged, now_s)
        if weighed:
            self._keeper.write(KEPT, {"run": self._run, "restarts": self._restarts.to_state()})
        return [*lost, *weighed]

    def take_notices(self) -> list[str]:
        """Return what else the rounds show, each thing once."""
        notices, self._notices = self._notices, []
        return notices

    def _judge_round(self, readings: Sequence[LinkReading]) -> list[Verdict]:
        found = []
        for verdict in self._analysis.add_round(readings):
            if verdict.kind == "node":
                since_s = self._judged_s[-min(verdict.rounds, len(self._judged_s))]
                self._episodes.begin(verdict.names[0], verdict.side, verdict.slowdown, since_s)
                found.append(self._of_node(verdict))
            else:
                causes = {self._cause_of(host) for host in verdict.names} - {UNKNOWN}
                cause = f"; likely cause: {', or '.join(sorted(causes))}" if causes else ""
                self._notices.append(verdict.reason() + cause)
        self._episodes.add_round([each for each in readings if each.foreign_share <= MOST_FOREIGN])
        self._notices += self._analysis.take_notices()
        return found

    def _of_node(self, verdict: LinkVerdict) -> Verdict:
        host = verdict.names[0]
        severity: Severity = "very slow" if verdict.slowdown >= VERY_SLOW else "slow"
        action: Action = "restart" if verdict.restart else "report"
        return Verdict(host, None, verdict.slowdown, severity, verdict.reason(), self._cause_of(host), action)

    def _cause_of(self, host: str) -> str:
        if host not in self._symptoms:
            return UNKNOWN
        peers = [found[-1] for other, found in self._symptoms.items() if other != host]
        seconds = self._judged_s[-1] - self._judged_s[0]
        return cause_of_link(together(self._symptoms[host]), peers, seconds)

    def _lost(self, reports: Iterable[tuple[str, LinkReport]]) -> list[Verdict]:
        """Return verdicts on nodes that no other node reaches any more."""
        done, failed = set[tuple[str, str]](), dict[tuple[str, str], str]()
        for host, report in reports:
            done |= {(reading.sender, reading.receiver) for reading in report.readings}
            failed |= {(host, partner): why for partner, why in report.failures.items()}
        losses = self._losses.add_round(done, failed)
        self._notices += [
            f"{one} and {other} do not reach each other, though both reach others: {why}"
            for (one, other), why in losses.pairs.items()
        ]
        return [
            Verdict(
                host,
                None,
                math.nan,
                "faulty",
                f"{host}: no other node reaches it any more: {why}",
                self._cause_of(host),
                action="restart",
            )
            for host, why in losses.nodes.items()
        ]

    def _is_calibrated(self, readings: Sequence[LinkReading]) -> bool:
        """Return whether transfers have the right number of bytes; if not, change that."""
        if not readings or self._calibrations == _MAX_CALIBRATIONS:
            return bool(readings)
        self._calibrations += 1
        wanted = bytes_for(statistics.median(each.n_bytes / each.duration_s for each in readings))
        if wanted == self._n_bytes:
            self._calibrations = _MAX_CALIBRATIONS
            return True
        self._n_bytes = wanted
        self._tell_bytes(wanted)
        return False
