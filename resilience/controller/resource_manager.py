"""What the resource manager says about the nodes, asked in the background: once a minute, and when a node is needed."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from laggard.resilience.allocation import Allocation
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.errors import ResourceManagerError

_log = logging.getLogger("laggard.resilience.controller")

ASK_INTERVAL_S = 60.0


class ResourceManager:
    """Asks the resource manager about all nodes of the job, and keeps what it said last."""

    def __init__(self, allocation: Allocation) -> None:
        # What is wrong with which node, as the resource manager said when it last answered
        self.words: Mapping[str, NodeWord] = {}
        self.notices: deque[NodeWord] = deque()  # what is wrong with nodes in use, which the user should be told
        self._hosts = [node.hostname for node in allocation.nodes]
        self._manager = allocation.manager
        self._asking = ThreadPoolExecutor(1, "resource-manager")
        self._answer: Future[Mapping[str, NodeWord] | None] | None = None
        self._asked_s = -math.inf  # monotonic
        self._told: set[NodeWord] = set()

    def look(self, active: Collection[str]) -> None:
        """Ask if it is time to, take what was answered, and note what is new about nodes in use; does not wait."""
        if self._answer is None and time.monotonic() >= self._asked_s + ASK_INTERVAL_S:
            self.ask()
        self.await_answer(0.0)
        news = {self.words[host] for host in active if host in self.words}
        self.notices.extend(sorted(news - self._told, key=lambda word: word.host))
        self._told = news

    def ask(self) -> None:
        """Ask, without waiting."""
        if self._answer is None:
            self._asked_s = time.monotonic()
            self._answer = self._asking.submit(self._ask)

    def await_answer(self, wait_s: float) -> None:
        """Wait for what was asked, but no longer than this."""
        if self._answer is None:
            return
        try:
            words = self._answer.result(wait_s)
        except TimeoutError:
            return
        self._answer = None
        if words is not None:
            self.words = words

    def remark(self, machine: str, why: str) -> None:
        """Pass on what speaks against a machine; does not wait."""
        self._asking.submit(self._remark, machine, why)

    def close(self) -> None:
        """Ask no more; does not wait."""
        self._asking.shutdown(wait=False)

    def _remark(self, machine: str, why: str) -> None:
        try:
            self._manager.remark(machine, why)
        except ResourceManagerError as error:
            _log.warning("%s", error)

    def _ask(self) -> Mapping[str, NodeWord] | None:
        try:
            return self._manager.words_on(self._hosts)
        except ResourceManagerError as error:
            _log.info("the resource manager does not say how the nodes are: %s", error)
            return None
