"""What the server knows of telemetry processes that are gone: the names of their metrics, and a dump."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from typing import Any

from laggard.kvstore.client.connection import Session
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.nodes.mailbox import PING, SERVER_NAME
from laggard.telemetry.store.rollups import Rollups


def lost_answerer(session: Session, rollups: Rollups, asker: NodeAsker, directory: str) -> NodeAnswerer:
    """Return what answers requests for names and dumps; those that are left answer for themselves."""

    def answer(question: Mapping[str, Any]) -> Value:
        if question["kind"] == "keys":
            return [[metric, []] for metric in sorted(rollups.history.metrics())]
        if question["kind"] != "dump":
            raise ValueError(f"unknown question {question['kind']!r}")
        # A process that was started again has perhaps sent nothing yet: it says itself which one it is.
        answers = asker.ask({"kind": PING}).by_host.values()
        lost = rollups.lost({answer["run"] for answer in answers})
        first = next(lost, None)
        if first is None:
            return {}
        try:
            return {"path": str(write_dump(directory, "lost", time.time(), chain([first], lost)))}
        except OSError as error:
            return {"failure": str(error)}

    return NodeAnswerer(session.client, session.endpoint, SERVER_NAME, answer)
