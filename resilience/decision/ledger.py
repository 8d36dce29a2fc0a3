"""The ledger: what speaks against each node and each device, by failures that followed it over drawn places. Pure.

After a failure suspects change places by chance (:mod:`laggard.resilience.decision.placement`). When and at which rank
a program would fail if no node were bad cannot depend on that draw. So of ``n`` places, a failure begins at a healthy
node whose place was drawn with a chance of at most ``1 / n``, whatever the program does, and with a bet ``q`` the
factor ``1 - q + q n [began there]`` has a mean of at most 1. The evidence against a node begins at 0; each failure
multiplies it by that factor, if its place was drawn, and adds a stake where it began. The evidence against all healthy
nodes less the stakes is then a supermartingale: at a bar of 100 and stakes of 1 at most one healthy node in a hundred
failures is put out, on average, however long the job (Ville, *Étude critique de la notion de collectif*, 1939).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from laggard.resilience.reading.signatures import Kind

BAR = 100.0
# How much of the evidence is bet: for a permanent fault, for one of two causes, and for one of many.
BETS = (0.8, 0.4, 0.1)
# How much likelier the words of a kind are if a node is bad than if it is not; of a healthy node the mean is below 1.
STAKES: Mapping[Kind, float] = {
    "hardware": 4.0,
    "unknown": 0.75,
    "network": 0.6,
    "transient": 0.5,
    "program": 0.3,
    "capacity": 0.3,
}
# Of words that hardly anything but a bad node is a reason for.
PROOF_STAKE = BAR / 2
# One cause repeats its words: after the first failure of a row they are worth less.
REPEATED = 0.1
# That an agent ends or falls silent is no word of the program's: the second time within a day is enough.
LOSS_STAKE = BAR / 2
# Nodes that are lost within this time have a cause that they share: only the first of them is a suspect.
SHARED_WINDOW_S = 600.0
WINDOW_S = 86400.0  # what is older does not count
SUSPICION = 0.05  # a node with more evidence than this is a suspect


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure, a hang or a loss that began on one node, and what had been drawn by chance before it."""

    host: str
    time_s: float  # Unix time
    stake: float
    device: str = ""  # the device of the rank that was first, if it is known
    # Of the nodes whose place was drawn for that launch: among how many places; those of devices within each node
    drawn: Mapping[str, int] = field(default_factory=dict)
    devices_drawn: Mapping[str, int] = field(default_factory=dict)
    is_loss: bool = False


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What the ledger has against a node."""

    host: str
    value: float
    failures: int  # how many began on it
    placements: int  # at how many drawn places it was during failures, and one more for places that were not drawn
    device: str = ""  # the device that they followed, if the evidence against it is more than against its node

    @property
    def is_enough(self) -> bool:
        """Whether the job should go on without the node."""
        return self.value >= BAR


def recent(incidents: Iterable[Incident], now_s: float) -> tuple[Incident, ...]:
    """Return the incidents that count."""
    return tuple(each for each in incidents if each.time_s > now_s - WINDOW_S)


def loss_of(host: str, incidents: Sequence[Incident], now_s: float) -> Incident:
    """Return the incident of a node that is lost."""
    is_shared = any(each.is_loss and each.host != host and each.time_s > now_s - SHARED_WINDOW_S for each in incidents)
    return Incident(host, now_s, 0.0 if is_shared else LOSS_STAKE, is_loss=True)


def evidence_against(host: str, incidents: Sequence[Incident], now_s: float) -> NodeEvidence:
    """Return what the ledger has against a node."""
    counting = recent(incidents, now_s)
    own = [each for each in counting if each.host == host]
    devices = sorted({each.device for each in own if each.device})
    # Half of a stake is for the device, if it is known.
    values = {device: _folded(counting, host, device) for device in ("", *devices)}
    device = max(values, key=lambda name: values[name])
    drawn = sum(host in each.drawn or host in each.devices_drawn for each in counting)
    undrawn = any(host not in each.drawn and host not in each.devices_drawn for each in own)
    return NodeEvidence(host, values[device], len(own), drawn + undrawn, device)


def device_on(host: str, incidents: Sequence[Incident]) -> str:
    """Return the device on which the newest failure of a node began; empty if it is not known."""
    return next((each.device for each in reversed(incidents) if each.host == host), "")


def suspects(hosts: Iterable[str], incidents: Sequence[Incident], now_s: float) -> list[NodeEvidence]:
    """Return the nodes that something speaks against, the most suspect first."""
    accused = {each.host for each in recent(incidents, now_s)}
    found = [evidence_against(host, incidents, now_s) for host in hosts if host in accused]
    return sorted((each for each in found if each.value > SUSPICION), key=lambda each: -each.value)


def _folded(incidents: Iterable[Incident], host: str, device: str) -> float:
    """Return the evidence against a node, or against one of its devices, as the mean over all bets."""
    by_bet = [0.0] * len(BETS)
    for incident in incidents:
        places = incident.drawn.get(host, 1)
        if device:
            places *= incident.devices_drawn.get(host, 1)
        is_here = incident.host == host and (not device or incident.device == device)
        stake = incident.stake * (0.5 if incident.device else 1.0) if is_here else 0.0
        for number, bet in enumerate(BETS):
            factor = 1 - bet + bet * places * is_here if places > 1 else 1.0
            by_bet[number] = by_bet[number] * factor + stake
    return sum(by_bet) / len(BETS)
