"""The file in which ``laggard doctor`` keeps past readings and which GPUs each node had."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laggard.detectors.judging.diagnosis import Past
from laggard.detectors.judging.inventory import Inventory
from laggard.errors import LaggardError
from laggard.system.user import state_home

_READINGS = "laggard-devices-1"
_INVENTORY = "inventory"
LOCK_DEADLINE_S = 5.0
LOCK_RETRY_S = 0.05


class PastReadingsError(LaggardError, ValueError):
    """The file of past readings (``path``) cannot be read."""

    path: Path
    reason: str
    template = "cannot read past readings from {path} ({reason}): remove it, or name another with --past"


@dataclass(frozen=True, slots=True)
class PastChecks:
    """What is known from earlier checks."""

    readings: Past = field(default_factory=dict)  # each device's readings
    inventory: Inventory = field(default_factory=dict)  # each node's GPUs


def default_past_file() -> Path:
    """Return the user's own file. Nodes that share a home directory share it."""
    return state_home() / "devices.json"


def read_past(path: Path) -> PastChecks:
    """Read the file; nothing is known if there is none."""
    if not path.exists():
        return PastChecks()
    try:
        content = json.loads(path.read_text())
        return PastChecks(dict(content[_READINGS]), dict(content.get(_INVENTORY, {})))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PastReadingsError(path, f"{type(error).__name__}: {error}") from error


def update_past(path: Path, change: Callable[[PastChecks], PastChecks]) -> None:
    """Replace the file by a changed one, atomically, and with what another doctor has written meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(path.with_name(path.name + ".lock")):
        new = change(read_past(path))
        content: Mapping[str, Any] = {_READINGS: new.readings, _INVENTORY: new.inventory}
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(content, file)
        Path(file.name).replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock, which others hold for milliseconds; if one holds it for seconds, it hangs, and we go on without."""
    until_s = time.monotonic() + LOCK_DEADLINE_S
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(LOCK_RETRY_S)
        yield
    finally:
        os.close(descriptor)
