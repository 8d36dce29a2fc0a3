"""The copy of State, in what takes long: primaries lost one after the other, copies lost, jobs begun again."""

from __future__ import annotations

import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.kvstore.server.process import StateServer
from laggard.kvstore.server.program import choose_program
from laggard.resilience.command.take_over import check_not_copied
from laggard.resilience.controller import state_copies
from laggard.resilience.errors import StateCopyError
from tests.integration.copied_state import HOSTS, CopiedState, Counting, lose_primary

LOSSES = 50


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CopiedState]:
    copied = CopiedState(tmp_path)
    yield copied
    copied.end()


@pytest.mark.timeout(3600)
def test_fifty_primaries_are_lost_and_no_acknowledged_commit_is(job: CopiedState) -> None:
    term, third, holder = job.begin(*HOSTS), "n2", "n3"
    for number in range(LOSSES):
        primary = term.hosts[0]
        taker = third if number % 2 else holder
        term = lose_primary(job, term, holder, taker)
        job.terms[-2].end()
        third, holder = primary, next(host for host in HOSTS if host not in {primary, taker})


def test_a_copy_that_is_lost_or_silent_is_given_up_and_another_node_gets_it(
    job: CopiedState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(state_copies, "PATIENCE_S", 0.5)
    monkeypatch.setattr(state_copies, "PROBE_INTERVAL_S", 0.1)
    term = job.begin(*HOSTS)
    term.look("n3", "n2")
    term.wait_for("n3 has a copy")
    for process in term.processes("n3")[1:]:  # the replica hangs, the node votes
        process.send_signal(signal.SIGSTOP)
    counting = Counting(term, retry_for_s=20)
    term.wait_for("there is no copy of State on another node (that of n3 confirms nothing): commits go on without one")
    counting.wait_for_more()
    term.wait_for("n2 has a copy")
    counting.wait_for_more()
    term.look("n3")  # n2 is lost
    term.wait_for("there is no copy of State on another node (n2 is lost)")
    counting.wait_for_more()
    term.kill_server()
    private = [path for path in tmp_path.rglob("copies/**/*") if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not private
    with pytest.raises(StateCopyError, match="there was none when n1 was last heard of: State is on n1 only"):
        job.begin("n3", "n1", "n2", missing=("n1",))


def test_nobody_takes_over_a_job_that_runs_or_without_most_nodes(job: CopiedState) -> None:
    term = job.begin(*HOSTS)
    term.look("n3")
    term.wait_for("n3 has a copy")
    with pytest.raises(StateCopyError, match="the job runs, with n1 as its primary; end it there first"):
        job.begin("n2", "n1", "n3")
    with pytest.raises(StateCopyError, match=r"only 1 of the 3 nodes that know where it is answer \(n1, n2, n3\)"):
        job.begin("n2", "n1", "n3", missing=("n1", "n3"))
    term.kill_server()
    with pytest.raises(StateCopyError, match="it is on n3, which does not answer"):
        job.begin("n2", "n1", "n3", missing=("n3",))


def test_the_same_primary_goes_on_from_its_own_state(job: CopiedState) -> None:
    term = job.begin(*HOSTS)
    term.look("n3")
    term.wait_for("n3 has a copy")
    term.state.append("numbers", 0)
    term.end()
    again = job.begin(*HOSTS)
    assert not again.begun.taken_over
    assert again.begun.record.term == 2
    assert again.state["numbers"] == [0]


def test_a_copy_is_encrypted_where_the_server_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = choose_program(None, encrypt=True)
    if not program.tls:
        pytest.skip("no server with TLS")
    start = StateServer.start
    monkeypatch.setattr(StateServer, "start", lambda *args, **more: start(*args, **more, encrypt=True))
    job = CopiedState(tmp_path)
    try:
        term = job.begin(*HOSTS)
        assert term.server.endpoint.encrypted
        term.look("n3")
        term.wait_for("n3 has a copy")
        term.state["answer"] = 42
        (config,) = tmp_path.glob("n3/copies/n3/*/authority.crt")
        assert config.read_text() == term.server.endpoint.authority
    finally:
        job.end()


def test_a_job_without_copies_does_not_take_a_directory_that_has_some(tmp_path: Path, job: CopiedState) -> None:
    job.begin(*HOSTS)
    with pytest.raises(StateCopyError, match="add --state-copy, or remove"):
        check_not_copied(tmp_path / "n1")
    check_not_copied(tmp_path / "elsewhere")
