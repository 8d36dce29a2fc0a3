"""The dump of what nodes had that are gone: the nodes that are left write their own, and the server writes this one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from typing import Any

from laggard.kvstore.client.connection import Session
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.nodes.mailbox import SERVER_NAME
from laggard.telemetry.store.rollups import Rollups


def lost_answerer(session: Session, rollups: Rollups, asker: NodeAsker, directory: str) -> NodeAnswerer:
    """Return what answers requests for a dump with that of lost nodes, if there are any."""

    def answer(question: Mapping[str, Any]) -> Value:
        if question["kind"] != "dump":
            raise ValueError(f"unknown question {question['kind']!r}")
        lost = rollups.lost(asker.hosts())
        first = next(lost, None)
        if first is None:
            return {}
        try:
            return {"path": str(write_dump(directory, "lost", time.time(), chain([first], lost)))}
        except OSError as error:
            return {"failure": str(error)}

    return NodeAnswerer(session.client, session.endpoint, SERVER_NAME, answer)
