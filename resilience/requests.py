"""What processes of the job ask of the controller, read by a thread of its own."""

from __future__ import annotations

import threading
from collections import deque

import redis

from kvstore.control import Control, Request
from kvstore.endpoint import Endpoint

__all__ = ["RequestReader"]

WAIT_S = 1.0


class RequestReader:
    """Reads the stream of requests, from its present end on; each is announced on ``news``.

    A server that does not answer is asked again: it is being restarted, or the controller ends the job.

    Parameters
    ----------
    endpoint
        The job's state server.
    news
        Announced when there is something in ``waiting``.
    after
        Id of the last request that is not to be read.

    Attributes
    ----------
    waiting
        Requests that the controller has not taken yet, oldest first.
    """

    def __init__(self, endpoint: Endpoint, news: threading.Condition, after: str) -> None:
        self.waiting: deque[Request] = deque()
        self._control = Control(endpoint.connect(), endpoint, launch=0)
        self._news = news
        self._last_id = after
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def stop(self) -> None:
        """Read no more; the thread ends within its wait."""
        self._ended.set()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                for request_id, request in self._control.requests(self._last_id, WAIT_S):
                    self._last_id = request_id
                    with self._news:
                        self.waiting.append(request)
                        self._news.notify_all()
            except (redis.ConnectionError, redis.TimeoutError):
                self._ended.wait(WAIT_S / 10)
