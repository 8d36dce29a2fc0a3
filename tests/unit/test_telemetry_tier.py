"""A tier's packed columns are kept unpacked for the next panel, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.telemetry.store import tier
from laggard.telemetry.store.chunks import Chunk, pack_rows
from laggard.telemetry.store.summaries import COLUMNS, columns_for, merged, of_samples

SECOND_US = 1_000_000


def chunk_of(n_seconds: int) -> Chunk:
    """Return a chunk of two series, with a row a second each."""
    times_us = np.tile(np.arange(n_seconds, dtype=np.int64) * SECOND_US, 2)
    rows = of_samples(np.repeat([3, 7], n_seconds), times_us, np.arange(2.0 * n_seconds))
    return pack_rows(merged(rows, SECOND_US), SECOND_US)


def sums(chunk: Chunk, chosen: int, columns: Sequence[str] = columns_for("sum")) -> list[float]:
    places = np.full(8, -1, dtype=np.int64)
    places[chosen] = 0
    rows, _ = tier.rows_of(tier.View([chunk], []), places, columns)
    found: list[float] = rows["sum"].tolist()
    rows["sum"][:] = -1.0  # what a reader makes of it is its own
    return found


def test_the_next_panel_finds_the_columns_unpacked() -> None:
    tier._kept.cache_clear()
    chunk = chunk_of(3)
    for chosen, expected in ((7, [3.0, 4.0, 5.0]), (3, [0.0, 1.0, 2.0]), (7, [3.0, 4.0, 5.0])):
        assert sums(chunk, chosen) == expected
    assert (tier._kept.cache_info().hits, tier._kept.cache_info().currsize) == (2, 1)


def test_large_chunks_and_all_columns_are_not_kept() -> None:
    tier._kept.cache_clear()
    n_seconds = tier.MAX_KEPT_ROWS // 2 + 1
    assert sums(chunk_of(n_seconds), 3)[:2] == [0.0, 1.0]
    assert sums(chunk_of(2), 7, COLUMNS) == [2.0, 3.0]
    assert tier._kept.cache_info().currsize == 0
