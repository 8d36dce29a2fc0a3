"""What the controller needs of whatever keeps its job's State."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Self

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import KVStoreError


class StateKeeper(ABC):
    """A server that keeps State, for as long as the job runs."""

    lock_id = ""  # of this controller in the server's lock, if other controllers can reach the server

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint  # where the server listens; this never changes
        self.changed = threading.Condition()  # notified when `messages` or `failure` has changed
        self.messages: deque[str] = deque()  # what has happened to the server, for the user
        self.failure: KVStoreError | None = None  # why State cannot be kept any longer
        self._stopping = False

    @abstractmethod
    def stop(self) -> None:
        """Be done with the server. Stopping twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_stopping_after(self, wait_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self._stopping or self.failure is not None, wait_s)

    def _say(self, message: str) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def _fail(self, failure: KVStoreError) -> None:
        with self.changed:
            self.failure = failure
            self.changed.notify_all()
