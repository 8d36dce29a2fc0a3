"""Notices: what a user should know about the readings though no device is to blame for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from laggard.collectors.causes import Cause
from laggard.collectors.device import DeviceId
from laggard.detectors.evidence import SlowLink

if TYPE_CHECKING:
    from laggard.kvstore.series.streams import Why

FailedAt = Literal["round", "tags", "look", "end"]


@dataclass(frozen=True, slots=True)
class Group:
    """Devices or ranks that are compared: one of them, how many they are, and how many there are in all."""

    first: DeviceId
    size: int
    n_all: int
    are_ranks: bool = False


@dataclass(frozen=True, slots=True)
class PaceChanged:
    """A whole group became slower or faster, by a ratio of times."""

    group: Group
    ratio: float
    since_s: float | None


@dataclass(frozen=True, slots=True)
class Noisy:
    """Readings vary so much that a slowdown by a smaller ratio than ``allowed`` cannot be told, or only late."""

    group: Group
    noise: float
    allowed: float
    lasts: bool


@dataclass(frozen=True, slots=True)
class LinkNotice:
    """A leaf switch, a pair or the only link is slow; the causes that its ends suggest."""

    link: SlowLink
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkBusy:
    """Others fill a node's links, so these are not judged."""

    host: str
    rounds: int


@dataclass(frozen=True, slots=True)
class PairUnreachable:
    """Two nodes no longer reach each other, though both reach others."""

    pair: tuple[str, str]
    why: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Devices give no good reading."""

    devices: tuple[DeviceId, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answering:
    """Devices that were silent give readings again."""

    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Blind:
    """Nobody gives readings."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something raised an error; after all but the end, the watcher goes on."""

    what: FailedAt
    error: str


@dataclass(frozen=True, slots=True)
class SamplesRefused:
    """Samples that a node wrote are not believed; what the first of them said."""

    node: str  # empty: not known
    why: Why
    example: str
    count: int


GroupNotice = PaceChanged | Noisy
Notice = GroupNotice | LinkNotice | LinkBusy | PairUnreachable | Silent | Answering | Blind | Failed | SamplesRefused
