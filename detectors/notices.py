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
class Shift:
    """Something became slower, by a ratio of times, or was and is as fast as before again."""

    ratio: float
    since_s: float | None  # Unix times; `None` if unknown
    over_s: float | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class GroupSlower:
    """A whole group became slower."""

    group: Group
    shift: Shift


@dataclass(frozen=True, slots=True)
class LinksSlower:
    """The links between several sets of nodes became slower, and those within each did not; no sets: all links."""

    sides: tuple[tuple[str, ...], ...]
    shift: Shift


@dataclass(frozen=True, slots=True)
class Flapping:
    """A node's link went down again and again: how often, in how many seconds."""

    host: str
    downs: int
    seconds: float
    up_s: float = 0.0  # for how long it has stayed up since, if that is over


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


GroupNotice = GroupSlower | Noisy
LinkSign = LinkNotice | LinkBusy | LinksSlower | Flapping | PairUnreachable
Notice = GroupNotice | LinkSign | Silent | Answering | Blind | Failed | SamplesRefused
