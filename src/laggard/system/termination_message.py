"""What a container leaves for the operators of a cluster: Kubernetes shows it with the pod once that has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TERMINATION_MESSAGE = Path("/dev/termination-log")
VARIABLE = "LAGGARD_TERMINATION_MESSAGE"  # for pods whose `terminationMessagePath` is another one
_MAX_BYTES = 4096  # Kubernetes cuts off the rest


def leave(text: str) -> None:
    """Leave a text, if there is a place for it."""
    path = Path(os.environ.get(VARIABLE, TERMINATION_MESSAGE))
    if text and path.exists():
        with suppress(OSError):  # it may not be ours
            path.write_bytes(text.encode()[:_MAX_BYTES])
