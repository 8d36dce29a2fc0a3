"""What the parts of an agent work with."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import dataclass, field

from laggard.resilience.agent.folder import NodeFolder
from laggard.resilience.agent.later import Later
from laggard.resilience.wire import Inbox, Report


@dataclass(frozen=True, slots=True)
class Context:
    """How to report and be told, where to work, and what calls when a file is ready (its data) or a time has come."""

    send: Callable[[Report], None]
    inbox: Inbox = field(default_factory=Inbox)
    folder: NodeFolder = field(default_factory=NodeFolder)
    selector: selectors.BaseSelector = field(default_factory=lambda: selectors.DefaultSelector())
    later: Later = field(default_factory=Later)
