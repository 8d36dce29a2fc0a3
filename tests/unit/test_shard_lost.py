"""Which checkpoints ended with the job that saved them."""

from __future__ import annotations

import pytest

from laggard.kvstore.checkpoints.complete import LostCheckpoint, ShardRecord, lost_with_job

IN_MEMORY = ShardRecord("x", 1, asked=1, copies={"node1": "server"})
INCOMPLETE = ShardRecord("x", 1, asked=2, copies={"node1": "server"})
IN_BOTH = ShardRecord("x", 1, asked=1, directory=True, copies={"node1": "server"}, in_directory=True)
SMALL = None  # State has the shard itself


@pytest.mark.parametrize(
    ("shards", "directory", "lost"),
    [
        ({"a/0/1/0-1": SMALL}, False, []),
        ({"a/0/1/0-1": IN_MEMORY}, False, [LostCheckpoint("a", 1, None)]),
        ({"a/0/1/0-1": IN_MEMORY}, True, [LostCheckpoint("a", 1, None)]),
        ({"a/0/1/0-1": IN_BOTH}, True, []),
        ({"a/0/1/0-1": IN_BOTH}, False, [LostCheckpoint("a", 1, None)]),
        ({"a/0/1/0-1": SMALL, "a/0/2/0-1": IN_MEMORY}, False, [LostCheckpoint("a", 2, 1)]),
        ({"a/0/1/0-1": IN_MEMORY, "a/0/2/0-1": SMALL}, False, []),
        ({"a/0/1/0-1": SMALL, "a/0/2/0-1": INCOMPLETE}, False, []),
        ({"a/0/1/0-1": SMALL, "a/0/2/0-2": IN_MEMORY}, False, []),
        ({"a/0/2/0-2": IN_MEMORY, "a/0/2/1-2": SMALL}, False, [LostCheckpoint("a", 2, None)]),
        (
            {"a/0/1/0-1": IN_MEMORY, "b/0/2/0-1": IN_MEMORY},
            False,
            [LostCheckpoint("a", 1, None), LostCheckpoint("b", 2, None)],
        ),
    ],
)
def test_the_newest_complete_checkpoint_is_named_if_only_nodes_had_it(
    *, shards: dict[str, ShardRecord | None], directory: bool, lost: list[LostCheckpoint]
) -> None:
    keys = {key if record is SMALL else f"{key}/shard": record for key, record in shards.items()}
    assert list(lost_with_job(["other", *keys], keys.get, directory=directory)) == lost


def test_it_says_what_is_left() -> None:
    assert str(LostCheckpoint("checkpoint", 12, 4)) == (
        "the newest checkpoint, of step 12, was only in the memory of nodes and is lost: "
        "the newest that is left is that of step 4"
    )
    assert str(LostCheckpoint("ema", 12, None)).endswith("is lost: none is left")
