"""How far a server is in loading its log, and how long to wait for it: as long as it gets on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

FIRST_MESSAGE_S = 5.0  # nobody wonders earlier
MESSAGE_INTERVAL_S = 15.0  # the account stays short


@dataclass(frozen=True, slots=True)
class Loading:
    """How much of its log a server has loaded."""

    loaded_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self | None:
        """Return what ``INFO persistence`` says; None if the server is not loading."""
        if not info.get("loading"):
            return None
        return cls(int(info.get("loading_loaded_bytes", 0)), int(info.get("loading_total_bytes", 0)))

    def left_s(self, loading_for_s: float) -> float:
        """Estimate the rest of the time, in seconds, from how long it took so far."""
        return loading_for_s * (self.total_bytes / max(1, self.loaded_bytes) - 1)

    def __str__(self) -> str:
        share = min(1.0, self.loaded_bytes / max(1, self.total_bytes))
        return f"{share:.0%} of {self.total_bytes / 1e9:.2f} GB"


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

    def note(self, now_s: float, loading: Loading | None) -> None:
        """Note how far the server is; None if it does not say."""
        if loading is None or loading.loaded_bytes <= self._loaded_bytes:
            return
        self._loaded_bytes = loading.loaded_bytes
        self.deadline_s = now_s + self._patience_s
        if now_s >= self._next_message_s:
            self._next_message_s = now_s + self._message_interval_s
            left_s = loading.left_s(now_s - self._began_s)
            self._tell(f"the server is loading its log: {loading}, about {left_s:.0f} s left")
