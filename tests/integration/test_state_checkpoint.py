"""Checkpoints on a real server."""

from __future__ import annotations

import numpy as np
import pytest
import redis

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.complete import Checkpoint, set_aside_key
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import DamagedCheckpointError, FencedError, NoCheckpointError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State

CHUNK_BYTES = 1 << 16


class Job:
    """Checkpointers of one job, launch after launch."""

    def __init__(self, server: StateServer) -> None:
        self.client: redis.Redis = server.endpoint.connect()
        self.client.flushall()
        self.server = server
        self.launch = -1
        self.begin()

    def begin(self) -> None:
        self.launch += 1
        begin_launch(self.client, self.server.endpoint, self.launch)

    def rank(self, rank: int = 0, ranks: int = 1, keep: int = 2) -> Checkpointer:
        state = State(self.client, self.server.endpoint, self.launch, chunk_bytes=CHUNK_BYTES)
        return Checkpointer(state, rank=rank, ranks=ranks, keep=keep)

    def damage(self, step: int) -> None:
        """Flip one bit in the last chunk written for this step."""
        record = self.client.hget("laggard:{test}:state:index", f"checkpoint/{self.launch}/{step}/0-1")
        assert isinstance(record, bytes)
        upload = record.split()[1][1:].decode()
        chunk = f"laggard:{{test}}:state:chunk:{upload}:0"
        self.client.setbit(chunk, 7, 1 - self.client.getbit(chunk, 7))


@pytest.fixture
def job(state_server: StateServer) -> Job:
    return Job(state_server)


def tree(step: int, rank: int = 0) -> dict[str, object]:
    return {"step": step, "layers": [np.full(50_000, rank, np.float32), {"bias": np.full(3, step)}]}


def test_without_any_checkpoint_there_is_no_latest(job: Job) -> None:
    assert job.rank().latest() is None


def test_a_tree_is_restored(job: Job) -> None:
    job.rank().save(3, tree(3))
    assert job.rank().latest() == 3
    back = job.rank().restore(3)
    assert (back["step"], back["layers"][0].dtype, back["layers"][1]["bias"].tolist()) == (3, np.float32, [3, 3, 3])


def test_a_checkpoint_is_complete_only_when_all_ranks_are_in(job: Job) -> None:
    for rank in (2, 0):
        job.rank(rank, 3).save(5, tree(5, rank))
        assert job.rank(1, 3).latest() is None
    with pytest.raises(NoCheckpointError, match=r"no checkpoint of step 5 .*complete ones: none"):
        job.rank(0, 3).restore(5)
    job.rank(1, 3).save(5, tree(5, 1))
    assert job.rank(1, 3).latest() == 5
    assert [job.rank(rank, 3).restore(5)["layers"][0][0] for rank in range(3)] == [0, 1, 2]


def test_the_last_k_are_kept_and_the_rest_leave_nothing_behind(job: Job) -> None:
    for step in range(10, 60, 10):
        for rank in range(2):
            job.rank(rank, 2, keep=2).save(step, tree(step, rank))
    state = State(job.client, job.server.endpoint, 0)
    assert sorted(state) == [f"checkpoint/0/{step}/{rank}-2" for step in (40, 50) for rank in (0, 1)]
    # A shard has four chunks for its 200,000 bytes, and two for what comes before and after.
    assert len(job.client.keys("laggard:{test}:state:chunk:*")) == 4 * 6


def test_an_incomplete_newer_one_does_not_push_out_a_complete_one(job: Job) -> None:
    for step in (1, 2):
        for rank in range(2):
            job.rank(rank, 2, keep=1).save(step, tree(step))
    job.rank(0, 2, keep=1).save(3, tree(3))
    assert job.rank(0, 2).latest() == 2


def test_shards_of_two_launches_never_form_one_checkpoint(job: Job) -> None:
    for rank in range(2):
        job.rank(rank, 2).save(1, tree(1))
    job.rank(0, 2).save(2, tree(2))
    job.begin()
    job.rank(1, 2).save(2, tree(2))
    assert job.rank(0, 2).latest() == 1
    assert not [key for key in State(job.client, job.server.endpoint, 1) if key.startswith("checkpoint/0/2/")]


def test_a_launch_that_went_back_has_the_newest_checkpoint(job: Job) -> None:
    for step in (10, 20):
        job.rank().save(step, tree(step))
    job.begin()
    job.rank().save(11, tree(11))
    assert job.rank().latest() == 11


def test_what_was_set_aside_is_deleted_before_the_one_to_go_on_from(job: Job) -> None:
    for step in (10, 20):
        job.rank().save(step, tree(step))
    state = State(job.client, job.server.endpoint, 0)
    state[set_aside_key("checkpoint", Checkpoint(0, 20, 1))] = True
    job.begin()
    assert job.rank().latest() == 10
    job.rank().save(11, tree(11))
    assert sorted(state) == ["checkpoint/0/10/0-1", "checkpoint/1/11/0-1"]


def test_no_launch_goes_on_from_what_is_newer_than_the_one_chosen(job: Job) -> None:
    for step in (10, 20, 30):
        job.rank(keep=3).save(step, tree(step))
    assert job.rank().steps() == [30, 20, 10]
    job.rank().set_aside_after(20)
    job.begin()
    assert job.rank().steps() == [20, 10]
    with pytest.raises(NoCheckpointError, match=r"no checkpoint of step 30 .*complete ones: \[20, 10\]"):
        job.rank().set_aside_after(30)
    job.rank().set_aside_after(None)
    assert job.rank().latest() is None


def test_all_ranks_of_a_launch_agree_on_the_newest_whenever_they_ask(job: Job) -> None:
    state = State(job.client, job.server.endpoint, 0)
    assert job.rank().agreed_latest() is None
    job.rank().save(10, tree(10))
    assert job.rank().agreed_latest() is None
    job.begin()
    before = State(job.client, job.server.endpoint, 1).commits()
    assert job.rank(0, 2).agreed_latest() == 10
    for rank in range(2):
        job.rank(rank, 2).save(20, tree(20))
    assert job.rank(1, 2).agreed_latest() == 10
    assert State(job.client, job.server.endpoint, 1).commits() == before + 2, "to ask is no progress"
    job.begin()
    assert job.rank(1, 2).agreed_latest() == 20
    assert len([key for key in state if key.endswith("latest")]) == 1


def test_a_step_that_two_launches_saved_is_read_from_the_later_one(job: Job) -> None:
    job.rank().save(1, {"by": 0})
    job.begin()
    job.rank().save(1, {"by": 1})
    assert job.rank().restore(1) == {"by": 1}


def test_a_damaged_checkpoint_is_recognised_and_the_one_before_is_offered(job: Job) -> None:
    for step in (10, 20):
        job.rank().save(step, tree(step))
    job.damage(20)
    with pytest.raises(
        DamagedCheckpointError, match=r"step 20 is damaged \(.*checksum\); restore the one before, of step 10"
    ) as caught:
        job.rank().restore(20)
    assert caught.value.before == 10
    assert job.rank().restore(10)["step"] == 10
    job.damage(10)
    with pytest.raises(DamagedCheckpointError, match=r"step 10 is damaged .* there is none before it"):
        job.rank().restore(10)


def test_a_job_with_another_number_of_ranks_can_read_shard_by_shard(job: Job) -> None:
    for rank in range(2):
        job.rank(rank, 2).save(1, tree(1, rank))
    job.begin()
    with pytest.raises(NoCheckpointError, match="it has shards of rank 0 to 1, not of rank 2"):
        job.rank(2, 3).restore(1)
    assert job.rank(2, 3).restore(1, rank=1)["layers"][0][0] == 1


def test_a_rank_of_an_old_launch_cannot_save(job: Job) -> None:
    old = job.rank()
    job.begin()
    with pytest.raises(FencedError):
        old.save(1, tree(1))
    assert job.rank().latest() is None


def test_other_keys_and_other_checkpointers_are_left_alone(job: Job) -> None:
    state = State(job.client, job.server.endpoint, 0)
    state.update({"checkpoint/0/1/x": 1, "other": 2})
    second = Checkpointer(state, name="ema/a.b", keep=1)
    for step in range(3):
        job.rank(keep=1).save(step, tree(step))
        second.save(step, tree(step))
    assert sorted(state) == ["checkpoint/0/1/x", "checkpoint/0/2/0-1", "ema/a.b/0/2/0-1", "other"]


@pytest.mark.parametrize(("rank", "ranks", "keep"), [(-1, 1, 1), (1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_invalid_settings_are_refused(job: Job, rank: int, ranks: int, keep: int) -> None:
    with pytest.raises(ValueError, match=r"must be at least"):
        job.rank(rank, ranks, keep)


def test_a_negative_step_is_refused(job: Job) -> None:
    with pytest.raises(ValueError, match="step -1 is negative"):
        job.rank().save(-1, {})
