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
from typing import Any, Self, cast

import orjson
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.values.codec import encode
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.errors import NodeError
from laggard.telemetry.nodes.mailbox import ASK, PING, REPLY, SERVER_NAME, Mailbox, subscription
from laggard.telemetry.sharing import SharedCall


class Precedence:
    """Between :meth:`begin` and :meth:`end`, those that call :meth:`give_way` wait, but only so long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0

    def begin(self) -> None:
        """Begin some work, in any thread."""
        with self._changed:
            self._under_way += 1

    def end(self) -> None:
        """End some work, in any thread."""
        with self._changed:
            self._under_way -= 1
            if not self._under_way:  # sixteen threads that are woken in vain cost as much as half an answer
                self._changed.notify_all()

    def give_way(self, at_most_s: float) -> bool:
        """Wait until no work is under way; return whether that is so, or the time has passed."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, at_most_s)


_log = logging.getLogger("laggard.telemetry")

DEADLINE_S = 1.5
WAIT_S = 1.0
RECONNECT_S = 1.0
STOP_DEADLINE_S = 3.0
ANSWER_THREADS = 2
IDLE_MAILBOXES = 8
# How often to see whether this process ends.
LOOK_S = 0.1
# For nodes that are silent, if there are no others: one may just have come back.
BRIEF_S = 0.1


@dataclass(slots=True)
class Replies:
    """What the nodes answered."""

    by_host: dict[str, Value] = field(default_factory=dict)  # the answers
    took_s: dict[str, float] = field(default_factory=dict)  # how long each answer took
    missing: list[str] = field(default_factory=list)  # nodes that did not answer in time, or are gone
    received: frozenset[str] = frozenset()  # nodes that received the question


class Listener:
    """Receives what is published on some channels during the ``with`` block, in its own thread."""

    def __init__(self, client: redis.Redis, channels: Collection[str], handle: Callable[[bytes], None]) -> None:
        self._subscription = subscription(client)
        self._channels = channels  # full names
        self._handle = handle  # called with each message

    def __enter__(self) -> Self:
        self._subscription.subscribe(**dict.fromkeys(self._channels, self._take))
        self._subscription.get_message(timeout=WAIT_S)  # until it is open
        self._thread = self._subscription.run_in_thread(WAIT_S / 4, daemon=True, exception_handler=_wait_for_server)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()
        self._thread.join(STOP_DEADLINE_S)

    def _take(self, message: dict[str, Any]) -> None:
        try:
            self._handle(message["data"])
        except ValueError as error:
            _log.warning("ignored a message: %s", error)


def _wait_for_server(error: Exception, _subscription: Any, _thread: Any) -> None:
    """Wait before the connection is tried again."""
    if not isinstance(error, redis.ConnectionError | redis.TimeoutError):
        raise error
    _log.info("the state server does not answer, retrying: %s", error)
    time.sleep(RECONNECT_S)


class NodeAnswerer:
    """Answers questions for one node during the ``with`` block."""

    def __init__(
        self, client: redis.Redis, endpoint: Endpoint, host: str, answer: Callable[[dict[str, Any]], Value]
    ) -> None:
        self._client = client  # the job's state server
        self._endpoint = endpoint
        self._host = host
        # Returns the answer to a question; a ValueError is sent back as the refusal. The question's `until_s` is the
        # time on this node's monotonic clock until which the answer is waited for. A ping is answered in the thread
        # that listens, so that large answers do not delay it.
        self._answer = answer
        self.under_way = Precedence()  # from when a question arrives until its answer is sent
        self._threads = ThreadPoolExecutor(ANSWER_THREADS, thread_name_prefix="telemetry-answer")
        self._listener = Listener(client, [endpoint.key(ASK, host)], self._submit)

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, message: bytes) -> None:
        try:
            envelope = orjson.loads(message)
            reply_to, number, question = envelope["reply"], envelope["number"], dict(envelope["question"])
            question["until_s"] = time.monotonic() + envelope["expires_in_s"]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            _log.warning("ignored a malformed question: %s", error)
            return
        self.under_way.begin()
        if question.get("kind") == PING:
            self._reply(reply_to, number, question)
        else:
            self._threads.submit(self._reply, reply_to, number, question)

    def _reply(self, reply_to: str, number: int, question: dict[str, Any]) -> None:
        try:
            if time.monotonic() <= question["until_s"]:  # after that nobody is waiting for it any more
                reply = {"host": self._host, "number": number, **self._answered(question)}
                self._client.publish(self._endpoint.key(REPLY, reply_to), encode(REPLY, reply).joined())
        except redis.RedisError as error:
            _log.warning("cannot send an answer: %s", error)
        finally:
            self.under_way.end()

    def _answered(self, question: dict[str, Any]) -> dict[str, Value]:
        try:
            return {"answer": self._answer(question)}
        except ValueError as refusal:
            return {"refusal": str(refusal)}
        except Exception as error:  # noqa: BLE001 - a bug must not look like a lost node
            _log.exception("answering a question failed")
            return {"refusal": f"{self._host} failed: {error!r}"}


class NodeAsker:
    """Asks all nodes of a job."""

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        deadline_s: float = DEADLINE_S,
        ended: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client  # the job's state server
        self._endpoint = endpoint
        self.deadline_s = deadline_s  # how long to wait for answers, unless a question says otherwise
        self._ended = threading.Event() if ended is None else ended  # when it is set, nothing is waited for any longer
        self._clock = clock  # returns monotonic time in seconds
        # How long nodes were waited for in vain: they are asked, but not waited for as long again until they answer.
        self._in_vain_s: dict[str, float] = {}
        self._idle: deque[Mailbox] = deque(maxlen=IDLE_MAILBOXES)
        self._listening = SharedCall(self._read_listening)

    def hosts(self) -> list[str]:
        """Return the names of the nodes that listen."""
        return self._listening()

    def _read_listening(self) -> list[str]:
        prefix = self._endpoint.key(ASK, "")
        channels = cast("list[bytes]", self._client.pubsub_channels(f"{prefix}*"))
        return sorted({channel.decode().removeprefix(prefix) for channel in channels} - {SERVER_NAME})

    def ask(
        self, question: dict[str, Any], *, hosts: Collection[str] | None = None, deadline_s: float | None = None
    ) -> Replies:
        """Ask the given nodes, by default all that listen, and wait for their answers until the deadline."""
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        wanted = sorted(self.hosts() if hosts is None else hosts)
        mailbox = self._mailbox()
        try:
            replies = self._ask(mailbox, question, wanted, deadline_s)
        except NodeError:
            self._idle.append(mailbox)
            raise
        except BaseException:
            mailbox.close()
            raise
        self._idle.append(mailbox)
        replies.missing = [host for host in wanted if host not in replies.by_host]
        return replies

    def _mailbox(self) -> Mailbox:
        try:
            return self._idle.pop()
        except IndexError:
            return Mailbox(self._client, self._endpoint)

    def _ask(self, mailbox: Mailbox, question: dict[str, Any], asked: Sequence[str], deadline_s: float) -> Replies:
        begun_s = self._clock()
        waiting = set(mailbox.send(question, asked, deadline_s))
        for host in set(asked) - waiting:
            self._in_vain_s.pop(host, None)  # it is gone: another of its name begins anew
        replies = Replies(received=frozenset(waiting))
        while waiting:
            hopeless = all(self._in_vain_s.get(host, -math.inf) >= deadline_s for host in waiting)
            limit_s = min(BRIEF_S, deadline_s) if hopeless else deadline_s
            if (left_s := begun_s + limit_s - self._clock()) <= 0:
                break
            given_up = hopeless and bool(replies.by_host)
            reply = mailbox.take(0.0 if given_up else min(left_s, LOOK_S))
            if self._ended.is_set():
                raise NodeError("nothing is waited for any longer: this process ends")
            if reply is None:
                if given_up:
                    break
                continue
            self._in_vain_s.pop(reply["host"], None)
            if reply["number"] != mailbox.number:
                continue  # a late answer to an earlier question
            if "refusal" in reply:
                raise NodeError(reply["refusal"])
            replies.by_host[reply["host"]] = reply["answer"]
            replies.took_s[reply["host"]] = self._clock() - begun_s
            waiting.discard(reply["host"])
        for host in waiting:
            self._in_vain_s[host] = max(deadline_s, self._in_vain_s.get(host, 0.0))
        return replies
