"""A job whose State is on the site's own server: killed, typed twice, its server restarted, and continued elsewhere."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.state.mapping import State
from tests.integration.jobs import RunningJob
from tests.processes import command_line
from tests.site_servers import PROGRAMS, SiteServer, await_replicas, fail_over, replica_of, site_server
from tests.waiting import wait_until

Start = Callable[..., RunningJob]

# docs/site-redis.md
SITE_JOB = (
    "laggard --state-server rediss://laggard@redis.example.org:6379/0 --job-name gpt-7b "
    "--state-password-file ~/.redis-password --resilient train.py"
)
NODES = ("--local-nodes=2", "--per-node", "--virtual-gpus=1", "--telemetry-level=2")
# Both ranks count until a file appears, and note what was acknowledged.
COUNT = """
    import os, sys, time
    from laggard.kvstore import State
    from laggard.resilience import Job

    rank, state = os.environ["NODE_RANK"], State.current()
    print("launch", Job.current().launch, "goes on from", state.get("n" + rank, 0), flush=True)
    assert "LAGGARD_STATE_PASSWORD" not in os.environ

    def add_one(transaction):
        n = transaction.get("n" + rank, 0) + 1
        transaction["n" + rank] = n
        transaction.append("log" + rank, n)
        return n

    while not os.path.exists(FOLDER + "/enough"):
        n = state.update_with(add_one)
        with open(FOLDER + "/acknowledged" + rank, "a") as file:
            file.write(f"{n}\\n")
        time.sleep(0.02)
"""


def options(server: SiteServer) -> list[str]:
    """Return the options of a job as on the page, for this server."""
    given = [*server.options("gpt-7b"), "--resilient"]
    assert {word.partition("=")[0] for word in given} >= {word for word in SITE_JOB.split() if word.startswith("--")}
    return [*given, *NODES]


def acknowledged(folder: Path) -> list[int]:
    """Return how many commits each rank was told of."""
    files = [folder / f"acknowledged{rank}" for rank in range(2)]
    return [len(file.read_text().split()) if file.exists() else 0 for file in files]


def await_more(job: RunningJob, folder: Path) -> None:
    """Wait until both ranks count again."""
    before = acknowledged(folder)
    wait_until(lambda: all(now > then for now, then in zip(acknowledged(folder), before, strict=True)), job.everything)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_command_goes_on_anywhere_and_each_commit_is_there_once(
    start_job: Start, tmp_path: Path, name: str
) -> None:
    program = COUNT.replace("FOLDER", repr(str(tmp_path)))
    with site_server(name, tmp_path / "site") as server:
        given = options(server)
        first = start_job(*given, program=program)
        await_more(first, tmp_path)
        second = start_job(*given, program=program)
        assert second.finish() == 1
        assert f"is run by process {first.process.pid} of" in second.account
        server.kill()
        server.start()
        await_more(first, tmp_path)
        assert first.process.poll() is None
        assert not any("secret" in command_line(process) for process in first.processes())
        first.process.kill()
        first.process.wait()
        third = start_job(*given, program=program)
        await_more(third, tmp_path)
        (tmp_path / "enough").touch()
        assert third.finish() == 0, third.everything()
        assert "launch 1 goes on from" in third.output
        assert "it holds" not in third.account
        with server.client() as client:
            keys = {key.decode() for key in client.scan_iter()}
        assert {key.partition("}")[0] for key in keys} == {"laggard:{gpt-7b"}
        assert "laggard:{gpt-7b}:controller" not in keys  # it was given back
        check_history(tmp_path, server.endpoint("gpt-7b"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_job_goes_on_through_a_failover_with_all_that_was_acknowledged(
    start_job: Start, tmp_path: Path, name: str
) -> None:
    program = COUNT.replace("FOLDER", repr(str(tmp_path)))
    with (
        site_server(name, tmp_path / "site") as primary,
        site_server(name, tmp_path / "replica", replica_of(primary)) as replica,
    ):
        await_replicas(primary, 1)
        job = start_job(*options(primary), "--state-replicas=1", program=program)
        await_more(job, tmp_path)
        fail_over(primary, replica)
        with site_server(name, tmp_path / "next", replica_of(replica)):
            await_more(job, tmp_path)
            (tmp_path / "enough").touch()
            assert job.finish() == 0, job.everything()
        assert job.output.count("launch 0 goes on from 0") == 2
        assert "launch 1" not in job.output
        check_history(tmp_path, replica.endpoint("gpt-7b"))


@pytest.mark.timeout(240)
def test_a_controller_that_was_stopped_for_longer_than_its_lease_ends_and_nothing_counts_twice(
    start_job: Start, tmp_path: Path
) -> None:
    program = COUNT.replace("FOLDER", repr(str(tmp_path)))
    with site_server("valkey", tmp_path / "site") as server:
        first = start_job(*options(server), program=program)
        await_more(first, tmp_path)
        first.process.send_signal(signal.SIGSTOP)
        second = start_job(*options(server), program=program)
        second.wait_for("launch 1 goes on from")
        assert re.search(rf"process {first.process.pid} of \S+ on \S+ holds the job", second.account)
        first.process.send_signal(signal.SIGCONT)
        assert first.finish() == 1, first.everything()
        assert "another controller may act for job gpt-7b" in first.account
        assert not first.processes()
        await_more(second, tmp_path)
        (tmp_path / "enough").touch()
        assert second.finish() == 0, second.everything()
        check_history(tmp_path, server.endpoint("gpt-7b"))


def check_history(folder: Path, endpoint: Endpoint) -> None:
    """Compare State with what was acknowledged to the ranks."""
    with endpoint.connect() as client:
        state = State(client, endpoint, 0)
        for rank in range(2):
            told = [int(line) for line in (folder / f"acknowledged{rank}").read_text().split()]
            n = state[f"n{rank}"]
            assert isinstance(n, int)
            assert state[f"log{rank}"] == list(range(1, n + 1)), "something counts twice or is missing"
            assert len(set(told)) == len(told)
            assert set(told) <= set(range(1, n + 1)), "an acknowledged commit is lost"


def test_the_password_may_come_from_the_environment_which_the_program_does_not_inherit(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGGARD_STATE_PASSWORD", "secret")
    with site_server("valkey", tmp_path / "site") as server:
        url = f"redis://laggard@127.0.0.1:{server.port}"
        print_variable = "import os; print(os.environ.get('LAGGARD_STATE_PASSWORD'))"
        job = start_job(f"--state-server={url}", "--job-name=job", "--per-node", program=print_variable)
        assert job.finish() == 0, job.everything()
    assert job.output.endswith("None\n")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--state-server=redis://db"], "--state-server needs --job-name"),
        (["--state-server=redis://:sesame@db", "--job-name=j"], "can be read by every user"),
        (["--state-server=redis://db", "--job-name=j", "--state-dir=here"], "cannot be combined: leave one out"),
        (["--state-server=redis://db", "--job-name=a b"], "cannot be a job's name"),
        (["--state-replicas=1"], "has no effect without --state-server"),
        (["--state-server=redis://db", "--job-name=j", "--state-password-file=open"], "run `chmod 600 open`"),
        (["--state-server=redis://db", "--job-name=j", "--state-ca=binary"], "--state-ca=binary cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    start_job: Start, tmp_path: Path, given: list[str], complaint: str
) -> None:
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "binary").write_bytes(b"\xff")
    job = start_job(*given, "--per-node", "true", directory=tmp_path)
    assert job.finish() == 2, job.everything()
    assert complaint in job.account
    assert len(job.account.splitlines()) == 1
    assert "sesame" not in job.account
