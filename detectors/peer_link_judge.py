"""What becomes of the reports on the links between the GPUs of a node: verdicts on GPUs, and notices about pairs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from laggard.collectors.causes import UNKNOWN
from laggard.collectors.device import DeviceId
from laggard.collectors.links.nvlinks import NVLINK
from laggard.collectors.links.peer_collector import PCIE, PeerReport
from laggard.detectors.judging.rounds import Round
from laggard.detectors.links.link_verdict import LinkVerdict
from laggard.detectors.peer_link_analysis import BUSY_ROUNDS, PeerLinkAnalysis
from laggard.detectors.verdict import Severity, Verdict

__all__ = ["PeerLinkJudge"]

VERY_SLOW = 1.33
_CAUSE_ROUNDS = 12


class PeerLinkJudge:
    """Judges the reports of the nodes, each node by itself. Nothing that it finds asks for a restart.

    Parameters
    ----------
    budget
        Bound on the probability of any false verdict on one node over the whole run.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times.
    """

    def __init__(self, budget: float, min_slowdown: float) -> None:
        self._nodes: dict[str, PeerLinkAnalysis] = defaultdict(lambda: PeerLinkAnalysis(budget, min_slowdown))
        self._reports: list[tuple[str, PeerReport]] = []
        self._past: dict[str, deque[PeerReport]] = defaultdict(lambda: deque(maxlen=_CAUSE_ROUNDS))
        self._notices: list[str] = []

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Take what a node says after a round; each report has tags of its own."""
        host, report = device[0], PeerReport.of_tags(tags)
        if report.readings:
            self._reports.append((host, report))
            self._past[host].append(report)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts on GPUs that are new with what the nodes have reported since the last call."""
        del readings, now_s  # the reports say more, and count in rounds
        reports, self._reports = self._reports, []
        found = []
        for host, report in reports:
            analysis = self._nodes[host]
            for verdict in analysis.add_round(report.readings):
                if verdict.kind == "node":
                    found.append(self._of_gpu(host, verdict))
                else:
                    self._notices.append(self._of_pair(host, verdict))
            if analysis.is_newly_busy():
                traffic = f"other traffic on the links of its GPUs in {BUSY_ROUNDS} rounds in a row"
                self._notices.append(f"{host}: {traffic}; they are not judged meanwhile")
        return found

    def take_notices(self) -> list[str]:
        """Return which pairs of GPUs are slow, and what else the rounds show, each thing once."""
        notices, self._notices = self._notices, []
        return notices

    def _of_gpu(self, host: str, verdict: LinkVerdict) -> Verdict:
        gpu = verdict.names[0]
        severity: Severity = "very slow" if verdict.slowdown >= VERY_SLOW else "slow"
        cause = self._cause_of(host, gpu, self._path_of(host, {gpu})) or UNKNOWN
        return Verdict(host, gpu, verdict.slowdown, severity, f"{host} gpu {verdict.reason()}", cause)

    def _of_pair(self, host: str, verdict: LinkVerdict) -> str:
        path = self._path_of(host, set(verdict.names))
        said = {f"gpu {gpu}: {cause}" for gpu in verdict.names if (cause := self._cause_of(host, gpu, path))}
        joined = f", joined by {path}" if path else ""
        likely = f"; likely cause: {', or '.join(sorted(said))}" if said else ""
        return f"{host} gpu {verdict.reason()}{joined}{likely}"

    def _path_of(self, host: str, gpus: set[str]) -> str:
        newest = (each for report in reversed(self._past[host]) for each in report.readings)
        return next((each.path for each in newest if gpus <= {each.sender, each.receiver}), "")

    def _cause_of(self, host: str, gpu: str, path: str) -> str:
        """Return the newest sentence about the links of a GPU; empty if there is none."""
        kinds = [NVLINK] if NVLINK in path else [PCIE] if path else [NVLINK, PCIE]
        said = (report.causes.get(gpu, {}).get(kind, "") for report in reversed(self._past[host]) for kind in kinds)
        return next(filter(None, said), "")
