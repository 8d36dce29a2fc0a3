"""How far a server is in loading its log, and how long to wait for it: as long as it gets on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FIRST_MESSAGE_S = 5.0  # nobody wonders earlier
MESSAGE_INTERVAL_S = 15.0  # the account stays short


class LoadingWatch:
    """Moves a deadline while a server gets on with its log, and tells the user now and then."""

    def __init__(
        self,
        patience_s: float,
        now_s: float,
        tell: Callable[[str], None],
        message_interval_s: float = MESSAGE_INTERVAL_S,
    ) -> None:
        self.deadline_s = now_s + patience_s  # until when to wait, in monotonic seconds
        self._patience_s = patience_s  # how long the server may take without getting on, in seconds
        self._began_s = now_s
        self._message_interval_s = message_interval_s
        self._next_message_s = now_s + min(FIRST_MESSAGE_S, message_interval_s)
        self._tell = tell  # takes a sentence for the user
        self._loaded_bytes = 0

    def note(self, now_s: float, info: Mapping[str, Any]) -> None:
        """Note how far the server is, by what ``INFO persistence`` says."""
        loaded_bytes, total_bytes = int(info.get("loading_loaded_bytes", 0)), int(info.get("loading_total_bytes", 0))
        if loaded_bytes <= self._loaded_bytes:
            return
        self._loaded_bytes = loaded_bytes
        self.deadline_s = now_s + self._patience_s
        if now_s >= self._next_message_s:
            self._next_message_s = now_s + self._message_interval_s
            share = min(1.0, loaded_bytes / max(1, total_bytes))
            size, left_s = f"{total_bytes / 1e9:.2f} GB", (now_s - self._began_s) * (1 / share - 1)
            self._tell(f"the server is loading its log: {share:.0%} of {size}, about {left_s:.0f} s left")
