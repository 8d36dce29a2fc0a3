"""What a rank has imported before it was at work: the list that it writes, read once it has not grown for a while."""

from __future__ import annotations

import contextlib
from pathlib import Path

# Looks without a new name after which a rank is at work; more if it has taken long to get there.
QUIET_LOOKS = 3
MAX_QUIET_LOOKS = 60
# A program that imports something now and then has a few lists, not one for each.
MAX_LISTS = 3


class Imports:
    """Looks at the list of one rank, about once a second."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._names: list[str] = []
        self._n_looks = self._quiet_looks = 0
        self._n_lists = 0

    def watch(self, path: Path) -> None:
        """Look at this list from now on."""
        self._path, self._names = path, []
        self._n_looks = self._quiet_looks = self._n_lists = 0

    def look(self, *, is_at_work: bool = False) -> list[str]:
        """Return the names if there are some, and no new ones since a few looks ago, once for each list.

        Whoever knows that the rank is at work need not wait for that.
        """
        if self._path is None or self._n_lists >= MAX_LISTS:
            return []
        names: list[str] = []
        with contextlib.suppress(OSError):  # it has not begun
            names = self._path.read_text(errors="replace").splitlines()
        self._n_looks += 1
        if names != self._names:
            self._names, self._quiet_looks = names, 0
        else:
            self._quiet_looks += 1
        busy_looks = self._n_looks - self._quiet_looks
        is_quiet = self._quiet_looks == min(max(QUIET_LOOKS, busy_looks // 2), MAX_QUIET_LOOKS)
        if not names or not (is_quiet or is_at_work):
            return []
        self._n_lists += 1
        return names
