"""Which checkpoints count, which are kept, and who takes copies: decided from the keys and records of State."""

from __future__ import annotations

import pytest

from laggard.kvstore.checkpoints.complete import (
    Checkpoint,
    Found,
    Newest,
    ShardKey,
    ShardRecord,
    is_record,
    may_change,
    newest_of_each,
    next_peers,
    no_longer_kept,
    set_aside_after,
    set_aside_key,
    shards_in,
    that_can_go_on,
    under_way,
)

KEY = ShardKey("ema/a.b", Checkpoint(3, 40, 8), 5)


def test_a_key_and_its_record_name_the_shard() -> None:
    assert KEY.value == "ema/a.b/3/40/5-8"
    assert KEY.record == "ema/a.b/3/40/5-8/shard"
    assert ShardKey.of_record(KEY.record) == KEY


@pytest.mark.parametrize("key", [KEY.value, "shard", "a/1/2/3/shard", "a/1/2/x-4/shard", ""])
def test_what_is_no_record_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not the record of a shard"):
        ShardKey.of_record(key)
    assert not is_record(key)
    assert is_record(KEY.record)


def test_shards_are_found_among_other_keys() -> None:
    keys = ["a/0/1/0-2", "a/0/1/1-2/shard", "a/0/1/x", "b/0/1/0-2", "a/0/1/0-2/other", "aa/0/1/0-2", "a/1/1/0-1/shard"]
    assert shards_in("a", keys) == {
        Checkpoint(0, 1, 2): Found({0}, {1}),
        Checkpoint(1, 1, 1): Found(set(), {0}),
    }


@pytest.mark.parametrize(
    ("asked", "copies", "directory", "in_directory", "complete"),
    [
        (2, {}, False, False, False),
        (2, {"a": "1"}, False, False, False),
        (2, {"a": "1", "b": "2"}, False, False, True),
        (1, {"a": "1"}, False, False, True),
        (2, {"a": "1", "b": "2"}, True, False, False),
        (2, {"a": "1", "b": "2"}, True, True, True),
        (0, {}, True, True, True),
        (2, {"a": "1", "b": "2", "c": "3"}, False, False, True),
    ],
)
def test_a_shard_is_complete_with_the_copies_asked_for(
    *, asked: int, copies: dict[str, str], directory: bool, in_directory: bool, complete: bool
) -> None:
    record = ShardRecord("x", 1, asked, directory, copies, in_directory)
    assert record.is_complete == complete
    assert ShardRecord.of_value(record.to_value()) == record


def test_a_copy_is_lost_with_the_server_that_held_it() -> None:
    record = ShardRecord("x", 1, 2, copies={"a": "1", "b": "2"})
    assert record.holders({"a": "1", "b": "2", "c": "3"}) == ["a", "b"]
    assert record.holders({"a": "another", "b": "2"}) == ["b"]
    assert not record.is_available({"a": "another"}, directory=True)
    assert record.is_available({"b": "2"}, directory=False)
    in_directory = ShardRecord("x", 1, 2, directory=True, copies={"a": "1"}, in_directory=True)
    assert in_directory.is_available({}, directory=True)
    assert not in_directory.is_available({}, directory=False)


COMPLETE, INCOMPLETE = ShardRecord("x", 1, 1, copies={"a": "1"}), ShardRecord("x", 1, 1)


@pytest.mark.parametrize(
    ("record", "shard_id", "launch", "expected"),
    [
        (INCOMPLETE, "x", 3, True),
        (INCOMPLETE, "x", 2, True),
        (INCOMPLETE, "x", 4, False),  # nothing completes it any more
        (COMPLETE, "x", 4, True),
        (COMPLETE, "another", 3, False),
        (None, "x", 3, False),
    ],
)
def test_a_server_adds_to_the_record_of_the_shard_that_it_has(
    *, record: ShardRecord | None, shard_id: str, launch: int, expected: bool
) -> None:
    assert may_change(KEY, record, shard_id, launch) == expected


def test_under_way_is_what_lacks_copies_of_checkpoints_that_every_rank_has_saved() -> None:
    records = {
        "a/3/40/0-2/shard": INCOMPLETE,
        "a/3/40/1-2/shard": COMPLETE,
        "a/3/50/0-2/shard": INCOMPLETE,  # rank 1 has not saved it
        "a/2/30/0-1/shard": INCOMPLETE,  # of an earlier launch
    }
    keys = [*records, "something else", "a/3/60/0-1/shard"]  # the last one is gone when it is read
    assert under_way(keys, records.get, 3) == 1
    assert under_way(keys, records.get, 2) == 1
    assert under_way(keys, records.get, 1) == 0


A, B, C, D = (Checkpoint(*each) for each in ((0, 10, 2), (0, 20, 2), (1, 15, 2), (1, 25, 2)))


@pytest.mark.parametrize(
    ("present", "complete", "keep", "launch", "goes"),
    [
        ([A, B], [B, A], 2, 0, []),
        ([A, B], [B, A], 1, 0, [A]),
        ([A, B], [B], 2, 0, [A]),  # A was overtaken before it was complete
        ([A, B], [A], 2, 0, []),  # B is on its way
        ([A, B], [], 2, 0, []),  # so are both
        ([A, B], [], 2, 1, [A, B]),  # nothing completes those of launch 0 any more
        ([A, B, C], [B], 2, 1, [A]),
        ([A, B, C], [A], 2, 1, [B]),
        ([A, B, C, D], [C, B], 2, 1, [A]),
        ([A, B, C, D], [D, C], 2, 1, [A, B]),
        ([A, B, C, D], [D], 1, 1, [A, B, C]),
    ],
)
def test_what_is_beyond_those_kept_or_can_no_longer_count_goes(
    present: list[Checkpoint], complete: list[Checkpoint], keep: int, launch: int, goes: list[Checkpoint]
) -> None:
    assert no_longer_kept(present, complete, keep, launch) == set(goes)


@pytest.mark.parametrize(
    ("host", "have", "order"),
    [
        ("b", [], ["c", "d", "a"]),
        ("b", ["c"], ["d", "a"]),
        ("d", ["a"], ["b", "c"]),
        ("elsewhere", ["a"], ["b", "c", "d"]),
        ("elsewhere", [], ["a", "b", "c", "d"]),
        ("a", ["b", "c", "d"], []),
    ],
)
def test_copies_go_to_the_next_nodes_of_the_ring(host: str, have: list[str], order: list[str]) -> None:
    assert next_peers(host, ["a", "b", "c", "d"], have) == order


def test_a_node_alone_has_no_peer() -> None:
    assert next_peers("a", ["a"], []) == []


def test_the_newest_of_each_is_what_has_an_older_one_and_was_not_set_aside() -> None:
    keys = ["a/0/1/0-1", "a/0/2/0-1", "a/1/1/0-1", "b/0/1/0-2", "b/0/1/1-2", "b/0/2/0-2", "c/x/0/1/0-1", "c/x/0/9/0-1"]
    found = list(newest_of_each(keys, lambda _: None, {}, directory=False))
    assert found == [
        Newest("a", Checkpoint(1, 1, 1), Checkpoint(0, 2, 1)),
        Newest("c/x", Checkpoint(0, 9, 1), Checkpoint(0, 1, 1)),
    ]
    keys.append(set_aside_key("a", found[0].checkpoint))
    assert next(newest_of_each(keys, lambda _: None, {}, directory=False)) == Newest(
        "a", Checkpoint(0, 2, 1), Checkpoint(0, 1, 1)
    )
    assert sorted(that_can_go_on("a", keys)) == [Checkpoint(0, 1, 1), Checkpoint(0, 2, 1)]
    keys.append(set_aside_key("a", Checkpoint(0, 2, 1)))
    assert [each.name for each in newest_of_each(keys, lambda _: None, {}, directory=False)] == ["c/x"]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        (Checkpoint(1, 1, 1), [(0, 1), (0, 2), (1, 1)]),
        (Checkpoint(0, 2, 1), [(0, 1), (0, 2)]),
        (Checkpoint(0, 1, 1), [(0, 1)]),
        (None, []),
    ],
)
def test_what_is_newer_than_one_is_set_aside(last: Checkpoint | None, left: list[tuple[int, int]]) -> None:
    keys = ["a/0/1/0-1", "a/0/2/0-1", "a/1/1/0-1", "b/3/3/0-1"]
    marks = set_aside_after("a", keys, last)
    assert sorted((each.launch, each.step) for each in that_can_go_on("a", [*keys, *marks])) == left
    assert len(that_can_go_on("b", [*keys, *marks])) == 1


def test_the_newest_is_one_that_can_be_read() -> None:
    keys = [f"a/0/{step}/0-1/shard" for step in (1, 2, 3)]
    copies = {keys[0]: {"n1": "server1"}, keys[1]: {"n1": "server1"}, keys[2]: {"n2": "server2"}}

    def read(key: str) -> ShardRecord:
        return ShardRecord("id", 1 << 21, 1, copies=copies[key])

    newest = [
        [each.checkpoint.step for each in newest_of_each(keys, read, servers, directory=False)]
        for servers in ({"n1": "server1", "n2": "server2"}, {"n1": "server1"}, {"n2": "server2"})
    ]
    assert newest == [[3], [2], []]
