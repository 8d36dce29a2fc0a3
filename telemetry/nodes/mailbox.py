"""The form of questions to nodes, the channels that they travel on, and a mailbox for the answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from secrets import token_hex
from typing import Any, cast

import orjson
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.values.codec import decode

ASK = "telemetry-ask"
REPLY = "telemetry-reply"
SERVER_NAME = ""
"""Under this name the telemetry server answers, which is not a node."""
PING = "ping"
"""The kind of question that a node answers at once, whatever else it is busy with."""
OPEN_WAIT_S = 1.0


def subscription(client: redis.Redis) -> Any:
    """Return a subscription to no channels yet."""
    # The library's default handler formats each message for a log that is off: a millisecond for a large one.
    return client.pubsub(push_handler_func=_unchanged)  # type: ignore[no-untyped-call]


def _unchanged(message: Any) -> Any:
    return message


class Mailbox:
    """A channel for answers; it is kept, because opening a connection costs more than most questions."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self.number = 0  # of the last question
        self._client = client  # the job's state server
        self._endpoint = endpoint
        self._name = token_hex(8)
        self._subscription = subscription(client)
        self._subscription.subscribe(endpoint.key(REPLY, self._name))
        self._subscription.get_message(timeout=OPEN_WAIT_S)  # until it is open: then somebody may write to it

    def send(self, question: Mapping[str, Any], hosts: Collection[str], deadline_s: float) -> list[str]:
        """Ask a question of some nodes, and return those that received it."""
        # The deadline travels as a duration, since the nodes' clocks may be apart.
        self.number += 1
        envelope = {"reply": self._name, "number": self.number, "question": question, "expires_in_s": deadline_s}
        message = orjson.dumps(envelope)
        with self._client.pipeline(transaction=False) as pipeline:
            for host in hosts:
                pipeline.publish(self._endpoint.key(ASK, host), message)
            counts = pipeline.execute()
        return [host for host, count in zip(hosts, counts, strict=True) if count]

    def take(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if there was none in this time."""
        found = self._subscription.get_message(ignore_subscribe_messages=True, timeout=wait_s)
        return None if found is None else cast("dict[str, Any]", decode(REPLY, [found["data"]]))

    def close(self) -> None:
        """Close the connection."""
        self._subscription.close()
