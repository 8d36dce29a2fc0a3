"""Whole nodes are killed while checkpoints are saved: what had counted is restored, never a torn or mixed one."""

from __future__ import annotations

import pytest

from tests.long.shard_chaos import chaos

# ``python -m tests.long.shard_chaos 100`` kills a hundred.
KILLS, LONGEST_S, FEWEST = 20, 100.0, 3


@pytest.mark.timeout(900)
def test_the_newest_checkpoint_that_counted_is_restored_from_the_peers_of_a_killed_node() -> None:
    outcome = chaos(1, KILLS, LONGEST_S)
    print(f"killed: {outcome.killed}; {outcome.counted} checkpoints counted, {outcome.restored} launches restored one")
    assert len(outcome.killed) >= FEWEST
    assert outcome.restored >= len(outcome.killed)
