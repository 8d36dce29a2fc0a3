"""Labels that say which ranks and devices are peers: given in code, or read from a file. Pure, but for the reading."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from laggard.collectors.device import DeviceId
from laggard.detectors.errors import GroupsError

GroupKey = int | DeviceId | str
"""What a label is given to: a rank, a device ``(host, gpu)``, or all devices of a host."""
Groups = Mapping[GroupKey, Hashable] | Mapping[DeviceId, Hashable] | Mapping[int, Hashable] | Mapping[str, Hashable]

_RANKS = re.compile(r"ranks? (\d+)(?:-(\d+))?")
_DEVICE = re.compile(r"(\S+) gpu (\S+)")
_HOST = re.compile(r"\S+")
MAX_RANKS = 10_000_000


def label_of(groups: Groups, rank: int | None, host: str, gpu: str) -> Hashable | None:
    """Return the label of a rank on a device: its own, else its device's, else its host's; ``None`` if it has none."""
    found: Mapping[Any, Hashable] = groups
    return next((found[key] for key in (rank, (host, gpu), host) if key in found), None)


def read_groups(path: Path) -> dict[GroupKey, Hashable]:
    """Read labels from a YAML file, see :func:`parse_groups`."""
    try:
        return parse_groups(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise GroupsError(str(path), str(getattr(error, "strerror", None) or error)) from error
    except yaml.YAMLError as error:
        raise GroupsError(str(path), "it is not valid YAML") from error
    except ValueError as error:
        raise GroupsError(str(path), str(error)) from error


def parse_groups(content: Any) -> dict[GroupKey, Hashable]:
    """Return the labels of a mapping with keys as in verdicts: ``rank 3``, ``rank 0-7``, ``node2 gpu 1`` or ``node2``.

    Raises
    ------
    ValueError
        If it is not such a mapping.
    """
    if not isinstance(content, Mapping):
        raise ValueError("it is not a mapping of names to labels, such as 'rank 0-7: stage 0'")  # noqa: TRY004 - as below
    found: dict[GroupKey, Hashable] = {}
    for name, label in content.items():
        if isinstance(label, Mapping | list) or label is None:
            raise ValueError(f"the label of {name!r} is {label!r}: give a word or a number")
        found |= dict.fromkeys(_keys_of(str(name)), str(label))
    return found


def _keys_of(name: str) -> list[GroupKey]:
    if ranks := _RANKS.fullmatch(name):
        first, last = int(ranks[1]), int(ranks[2] or ranks[1])
        if not first <= last < MAX_RANKS:
            raise ValueError(f"{name!r} is not a range of ranks")
        return list(range(first, last + 1))
    if device := _DEVICE.fullmatch(name):
        return [(device[1], device[2])]
    if _HOST.fullmatch(name):
        return [name]
    raise ValueError(f"{name!r} names no rank, device or node: write 'rank 0-7', 'node2 gpu 1' or 'node2'")
