"""One node's part of a round: it meets its partners one after another, and sends to each while that one sends to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.collectors.links.gate import DONE, TRANSFERS, Gate, Step
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.transfer import LinkCall, LinkListener, Transfer

REPEATS = 3  # the fastest counts
TRANSFER_S = 0.03
"""How long a transfer should take at line rate: enough to tell 10 %, see docs/links.md."""
FIRST_BYTES = 1 << 20
"""What is sent until the rate is known."""
_SMALLEST, _LARGEST = 256 << 10, 64 << 20

Address = tuple[str, int]


@dataclass(slots=True)
class LinkRound:
    """What one node measured in a round."""

    readings: list[LinkReading] = field(default_factory=list)  # of the links on which it sends
    failures: dict[str, str] = field(default_factory=dict)  # why there is no reading, by partner
    retransmissions: int = 0  # how many segments TCP had to send again


class LinkProber:
    """Probes the links of one node."""

    def __init__(self, host: str, address: str, key: bytes) -> None:
        self.host = host  # the node, and its address in the job
        self._address = address
        self._key = key  # the secret of the launch
        self._gate = Gate()
        self._listener = LinkListener(address, key, self._gate)

    @property
    def listens_at(self) -> Address:
        """Where its partners call it."""
        return self._address, self._listener.port

    def close(self) -> None:
        """Take no more calls."""
        self._listener.close()

    def run(
        self, number: int, partners: Sequence[str | None], addresses: Mapping[str, Address], n_bytes: int
    ) -> LinkRound:
        """Meet the partners in order, and return what was measured."""
        found = LinkRound()
        for exchange, partner in enumerate(partners):
            if partner is None or partner not in addresses:  # none at all, or one that is not ready yet
                continue
            try:
                transfer = self._exchange(number, exchange, addresses[partner], n_bytes)
            except TimeoutError:
                found.failures[partner] = "no answer in time"
            except OSError as error:
                found.failures[partner] = str(error)
            else:
                if transfer is not None:
                    link = (number, self.host, partner, transfer.duration_s)
                    found.readings.append(LinkReading(*link, n_bytes, transfer.foreign_share))
                    found.retransmissions += transfer.retransmissions
        self._gate.reach(Step(number, len(partners), DONE))
        return found

    def _exchange(self, number: int, exchange: int, partner: Address, n_bytes: int) -> Transfer | None:
        """Return what the transfers took; None if the partner is elsewhere."""
        transfers, done = (Step(number, exchange, part) for part in (TRANSFERS, DONE))
        self._gate.reach(transfers)
        with LinkCall(self._address, partner, self._key) as call:
            if not call.wait(transfers):
                return None
            transfer = call.send(n_bytes, REPEATS)
            self._gate.reach(done)
            call.wait(done)  # it may still be sending to us
            return transfer


def bytes_for(bytes_per_s: float) -> int:
    """Return how many bytes take about 30 ms at a line rate: a power of two."""
    wanted = bytes_per_s * TRANSFER_S
    size = _SMALLEST
    while size < min(wanted, _LARGEST):
        size *= 2
    return size
