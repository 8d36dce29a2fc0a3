"""What the parts of an agent work with."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import dataclass, field

from laggard.resilience.agent.folder import NodeFolder
from laggard.resilience.agent.later import Later
from laggard.resilience.wire import Report


@dataclass(frozen=True, slots=True)
class Context:
    """How to report, where to work, what waits for files (it calls their data when they are ready) and for times."""

    send: Callable[[Report], None]
    folder: NodeFolder = field(default_factory=NodeFolder)
    selector: selectors.BaseSelector = field(default_factory=lambda: selectors.DefaultSelector())
    later: Later = field(default_factory=Later)
