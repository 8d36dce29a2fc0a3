"""What detectors keep, in place of State."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from laggard.kvstore.state.mapping import State


class Kept(dict[str, Any]):
    """State, as far as detectors use it; what they write is no work of the program's."""

    def update_with(self, change: Callable[[Kept], Any], *, is_upkeep: bool) -> None:
        assert is_upkeep
        change(self)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> State:
        """Return such a State, typed as one."""
        return cast("State", kept if isinstance(kept, cls) else cls(kept))
