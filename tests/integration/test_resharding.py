"""Parts of arrays on the nodes of a job: another number of ranks reads them, from the newest checkpoint alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.kvstore import Block, MissingElementsError, Region, ReshardingError
from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.server.process import StateServer
from tests.integration.shard_nodes import ShardNodes
from tests.waiting import DEADLINE_S

SHAPE = (999, 700)  # 5.6 MB as float64
SAVED = 3


@pytest.fixture
def nodes(state_server: StateServer, tmp_path: Path) -> Iterator[ShardNodes]:
    state_server.endpoint.connect().flushall()
    made = ShardNodes(state_server, tmp_path, 3, None, "first")
    made.begin()
    made.start("n1", "n2", "n3")
    yield made
    made.end()


def whole(step: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(SHAPE), dtype=float).reshape(SHAPE) + 1e7 * step


def save(nodes: ShardNodes, step: int, ranks: range = range(SAVED)) -> Checkpointer:
    """Save a checkpoint of three ranks, or what some of them save of it."""
    saving = None
    for rank in ranks:
        region = Region.along(0, SHAPE, rank, SAVED)
        saving = nodes.checkpointer(f"n{rank + 1}", rank, SAVED)
        saving.save(step, {"weights": Block(whole(step)[region.slices()], region, SHAPE), "rank": rank, "step": step})
    assert saving is not None
    return saving


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_any_number_of_ranks_reads_the_newest_checkpoint_after_a_node_is_lost(nodes: ShardNodes, ranks: int) -> None:
    save(nodes, 1)
    assert save(nodes, 2).wait(2, DEADLINE_S)
    save(nodes, 3, range(2))  # never complete
    nodes.lose("n2")
    nodes.begin("n1", "n3")

    rows, columns = [], []
    for rank in range(ranks):
        checkpoints = nodes.checkpointer(("n1", "n3")[rank % 2], rank, ranks)
        step = checkpoints.latest()
        assert step == 2
        tree = checkpoints.restore_part(step)
        assert (tree["rank"], tree["step"]) == (rank % SAVED, 2)
        rows.append(tree["weights"].data)
        of_columns = checkpoints.restore_part(
            step,
            lambda _, shape, __, rank=rank: Region.along(1, shape, rank, ranks),  # type: ignore[misc]
        )
        columns.append(of_columns["weights"].data)

    np.testing.assert_array_equal(np.concatenate(rows), whole(2))
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), whole(2))


def test_what_no_rank_saved_is_named(nodes: ShardNodes) -> None:
    region = Region((0, 0), (500, 700))
    checkpoints = nodes.checkpointer("n1", 0, 1)
    checkpoints.save(1, {"layers": [{"weights": Block(whole(1)[region.slices()], region, SHAPE)}]})
    assert checkpoints.wait(1, DEADLINE_S)

    with pytest.raises(
        MissingElementsError, match=r"no rank saved layers\[0\]\.weights\[500:999, 0:700\] of shape \(999"
    ):
        nodes.checkpointer("n2", 0, 1).restore_part(1)


def test_a_region_beyond_the_array_and_an_array_split_along_two_axes_are_refused(nodes: ShardNodes) -> None:
    for rank in range(4):
        top = Region.along(0, SHAPE, rank // 2, 2)
        columns = Region.along(1, top.shape, rank % 2, 2)
        region = Region((top.start[0], columns.start[1]), columns.shape)
        checkpoints = nodes.checkpointer("n1", rank, 4)
        checkpoints.save(1, {"weights": Block(whole(1)[region.slices()], region, SHAPE)})
    assert checkpoints.wait(1, DEADLINE_S)
    reading = nodes.checkpointer("n1", 0, 2)

    with pytest.raises(
        ReshardingError, match=r"weights cannot be resharded: it is split along axes \[0, 1\]; say which"
    ):
        reading.restore_part(1)
    with pytest.raises(ReshardingError, match=r"the region \[0:2, 0:701\] is not within its shape \(999, 700\)"):
        reading.restore_part(1, lambda *_: Region((0, 0), (2, 701)))
    middle = Region((400, 300), (200, 100))
    found = reading.restore_part(1, lambda *_: middle)["weights"]
    np.testing.assert_array_equal(found.data, whole(1)[middle.slices()])
