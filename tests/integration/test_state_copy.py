"""State on two nodes: what is acknowledged is on both, and whoever takes over has it, in order, none twice.

``tests/long/test_state_copy.py`` has what takes longer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.kvstore.errors import KVStoreError
from laggard.resilience.controller import state_copies
from laggard.resilience.errors import StateCopyError
from tests.integration.copied_state import HOSTS, CopiedState, Counting, lose_primary
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CopiedState]:
    copied = CopiedState(tmp_path)
    yield copied
    copied.end()


def test_whoever_takes_over_has_every_acknowledged_commit_in_order_and_none_twice(job: CopiedState) -> None:
    lose_primary(job, job.begin(*HOSTS), holder="n3", taker="n2")


def test_a_primary_that_is_cut_off_from_most_nodes_acknowledges_nothing_and_ends(
    job: CopiedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PATIENCE_S", 0.5), ("PROBE_INTERVAL_S", 0.1), ("DECISION_S", 2.0)):
        monkeypatch.setattr(state_copies, name, value)
    old = job.begin(*HOSTS)
    old.look("n3", "n2")
    old.wait_for("n3 has a copy")
    counting = Counting(old)
    counting.wait_for_more()
    old.send_signal(signal.SIGSTOP, "n2", "n3")
    acknowledged = counting.finish()
    old.send_signal(signal.SIGCONT, "n2", "n3")  # a node answers again, but only to whoever takes over
    new = job.begin("n2", "n1", "n3", missing=("n1",))
    assert new.state["numbers"][: len(acknowledged)] == acknowledged
    before = len(new.state["numbers"])
    wait_until(lambda: old.copies.failure is not None)
    assert isinstance(old.copies.failure, StateCopyError)
    with pytest.raises(KVStoreError):
        old.connect(retry_for_s=0.5).append("numbers", -1)
    assert len(new.state["numbers"]) == before


def test_an_old_primary_that_starts_its_part_on_a_node_again_removes_no_copy_there_and_ends(job: CopiedState) -> None:
    old = job.begin(*HOSTS)
    old.look("n3")
    old.wait_for("n3 has a copy")
    new = job.begin("n2", "n1", "n3", missing=("n1",))
    new.look("n3")
    new.wait_for("n3 has a copy")
    old.restart("n3")
    wait_until(lambda: old.copies.failure is not None)
    assert "by another controller" in str(old.copies.failure)
    new.state["answer"] = 42
    for term in (old, new):
        term.kill_server()
    newest = job.begin("n1", "n2", "n3", missing=("n2",))
    assert newest.state["answer"] == 42
    assert old.parts["n3"].wait(DEADLINE_S) != 0  # both that ran there are ended
    assert new.parts["n3"].wait(DEADLINE_S) != 0


def test_two_nodes_are_too_few(job: CopiedState) -> None:
    with pytest.raises(StateCopyError, match="--state-copy needs 3 nodes"):
        job.begin("n1", "n2")
