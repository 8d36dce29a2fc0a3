"""Questions to all nodes in parallel, and their answers, over the state server's publish/subscribe channels.

Each node listens on its own channel; a question is published there, and the answers arrive on a channel of the one who
asks. Nothing is stored, no node listens on a port, and a node that is gone is noticed immediately: its channel has no
listener.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_hex
from types import TracebackType
from typing import Any, Self, cast

import orjson
import redis

from laggard.kvstore.codec import Value, decode, encode
from laggard.kvstore.connection import Endpoint
from laggard.telemetry.errors import NodeError

__all__ = ["Listener", "NodeAnswerer", "NodeAsker", "NodeError", "Replies"]

_log = logging.getLogger("laggard.telemetry")

ASK = "telemetry-ask"
REPLY = "telemetry-reply"
DEADLINE_S = 1.5
WAIT_S = 1.0
RECONNECT_S = 1.0
STOP_DEADLINE_S = 3.0
# Looking up the listeners before every question would cost a round trip; a new node is asked this much later.
HOSTS_LIFE_S = 0.1
ANSWER_THREADS = 2
IDLE_MAILBOXES = 8


@dataclass(slots=True)
class Replies:
    """What the nodes answered.

    Attributes
    ----------
    by_host
        The answers.
    missing
        Nodes that did not answer in time, or are gone.
    received
        How many nodes received the question.
    """

    by_host: dict[str, Value] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    received: int = 0


class Listener:
    """Receives what is published on some channels during the ``with`` block, in its own thread.

    Parameters
    ----------
    client
        Supplies a connection.
    channels
        Full names.
    handle
        Called with each message.
    """

    def __init__(self, client: redis.Redis, channels: Collection[str], handle: Callable[[bytes], None]) -> None:
        self._client = client
        self._channels = channels
        self._handle = handle
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="telemetry-listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(WAIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                with _subscription(self._client) as subscription:
                    subscription.subscribe(*self._channels)
                    while not self._ended.is_set():
                        self._take(subscription.get_message(timeout=WAIT_S / 4))
            except (redis.ConnectionError, redis.TimeoutError) as error:
                _log.info("the state server does not answer, retrying: %s", error)
                self._ended.wait(RECONNECT_S)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message["type"] == "subscribe":
            self._ready.set()
        elif message["type"] == "message":
            try:
                self._handle(message["data"])
            except ValueError as error:
                _log.warning("ignored a message: %s", error)


class NodeAnswerer:
    """Answers questions for one node during the ``with`` block.

    Parameters
    ----------
    client, endpoint
        The job's state server.
    host
        Name of the node.
    answer
        Returns the answer to a question; a ValueError is sent back as the refusal. The question's ``expires_s`` is
        the Unix time until which the answer is waited for.
    """

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, host: str, answer: Callable[[dict[str, Any]], Value]
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._host = host
        self._answer = answer
        self._threads = ThreadPoolExecutor(ANSWER_THREADS, thread_name_prefix="telemetry-answer")
        self._listener = Listener(client, [endpoint.key(ASK, host)], self._submit)

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.__exit__(kind, error, trace)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, message: bytes) -> None:
        self._threads.submit(self._reply, message)

    def _reply(self, message: bytes) -> None:
        try:
            envelope = orjson.loads(message)
            reply_to, number, question = envelope["reply"], envelope["number"], envelope["question"]
            expires_s = envelope["expires_s"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            _log.warning("ignored a malformed question: %s", error)
            return
        if time.time() > expires_s:
            return  # nobody is waiting for it any more
        try:
            answer = {"answer": self._answer({**question, "expires_s": expires_s})}
        except ValueError as refusal:
            answer = {"refusal": str(refusal)}
        except Exception as error:  # noqa: BLE001 - a bug must not look like a lost node
            _log.exception("answering a question failed")
            answer = {"refusal": f"{self._host} failed: {error!r}"}
        reply = {"host": self._host, "number": number, **answer}
        try:
            self._client.publish(self._endpoint.key(REPLY, reply_to), encode(REPLY, reply).joined())
        except redis.RedisError as error:
            _log.warning("cannot send an answer: %s", error)


class NodeAsker:
    """Asks all nodes of a job.

    Parameters
    ----------
    client, endpoint
        The job's state server.
    """

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self._idle: deque[_Mailbox] = deque(maxlen=IDLE_MAILBOXES)
        self._recent: tuple[float, list[str]] = (-math.inf, [])

    def hosts(self) -> list[str]:
        """Return the names of the nodes that listen."""
        prefix = self._endpoint.key(ASK, "")
        channels = cast("list[bytes]", self._client.pubsub_channels(f"{prefix}*"))
        return sorted(channel.decode().removeprefix(prefix) for channel in channels)

    def recent_hosts(self) -> list[str]:
        """Return :meth:`hosts`, which may be a moment old."""
        seen_s, hosts = self._recent
        if (now_s := time.monotonic()) - seen_s > HOSTS_LIFE_S:
            self._recent = now_s, hosts = now_s, self.hosts()
        return hosts

    def ask(
        self,
        question: dict[str, Any],
        *,
        hosts: Collection[str] | None = None,
        deadline_s: float = DEADLINE_S,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Replies:
        """Ask the given nodes, by default all that listen, and wait for their answers until the deadline.

        ``meanwhile`` is called while the nodes work on the question.

        Raises
        ------
        NodeError
            If a node refuses the question.
        redis.ConnectionError
            If the state server does not answer.
        """
        asked = sorted(self.hosts() if hosts is None else hosts)
        mailbox = self._mailbox()
        try:
            replies = self._ask(mailbox, question, asked, deadline_s, meanwhile)
        except NodeError:
            self._idle.append(mailbox)
            raise
        except BaseException:
            mailbox.subscription.close()
            raise
        self._idle.append(mailbox)
        replies.missing = [host for host in asked if host not in replies.by_host]
        return replies

    def _mailbox(self) -> _Mailbox:
        try:
            return self._idle.pop()
        except IndexError:
            return _Mailbox(self._client, self._endpoint)

    def _ask(
        self,
        mailbox: _Mailbox,
        question: dict[str, Any],
        asked: Sequence[str],
        deadline_s: float,
        meanwhile: Callable[[], object],
    ) -> Replies:
        until_s = time.monotonic() + deadline_s
        mailbox.number += 1
        envelope = {
            "reply": mailbox.name,
            "number": mailbox.number,
            "question": question,
            "expires_s": time.time() + deadline_s,
        }
        message = orjson.dumps(envelope)
        with self._client.pipeline(transaction=False) as pipeline:
            for host in asked:
                pipeline.publish(self._endpoint.key(ASK, host), message)
            counts = pipeline.execute()
        meanwhile()
        waiting = {host for host, count in zip(asked, counts, strict=True) if count}
        replies = Replies(received=len(waiting))
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            reply = mailbox.take(left_s)
            if reply is None or reply["number"] != mailbox.number:
                continue  # a late answer to an earlier question
            if "refusal" in reply:
                raise NodeError(reply["refusal"])
            replies.by_host[reply["host"]] = reply["answer"]
            waiting.discard(reply["host"])
        return replies


def _subscription(client: redis.Redis) -> Any:
    # The library's default handler formats each message for a log that is off: a millisecond for a large one.
    return client.pubsub(push_handler_func=_unchanged)  # type: ignore[no-untyped-call]


def _unchanged(message: Any) -> Any:
    return message


class _Mailbox:
    """A channel for answers; it is kept, because opening a connection costs more than most questions."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint) -> None:
        self.name = token_hex(8)
        self.number = 0
        self.subscription = _subscription(client)
        self.subscription.subscribe(endpoint.key(REPLY, self.name))
        self.subscription.get_message(timeout=WAIT_S)  # wait until it is open, before asking anybody to write to it

    def take(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if there was none in this time."""
        found = self.subscription.get_message(ignore_subscribe_messages=True, timeout=wait_s)
        return None if found is None else cast("dict[str, Any]", decode(REPLY, [found["data"]]))
