"""What jobs have noted about a site's nodes, in the site's own server, with a password."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from laggard.resilience.command.nodes import nodes
from laggard.resilience.controller.site_memory import SiteMemory
from laggard.resilience.decision.roster import MEMORY_S, Roster
from laggard.resilience.decision.site import Kind, Sighting
from laggard.resilience.errors import NodeHistoryError, UsageError
from laggard.resilience.record import history_server
from laggard.resilience.record.history_server import HistoryServer
from laggard.resilience.record.node_history import NodeHistory
from tests.site_servers import PROGRAMS, SiteServer, site_server

# docs/site-redis.md
SITE_NODES = (
    "laggard nodes --node-history rediss://laggard@redis.example.org:6379/0 --state-password-file ~/.redis-password"
)
NOW_S = time.time()


@pytest.fixture(params=list(PROGRAMS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SiteServer]:
    with site_server(request.param, tmp_path / "site") as there:
        yield there


def history_of(server: SiteServer, user: str = "laggard", now_s: float = NOW_S) -> NodeHistory:
    return NodeHistory(HistoryServer(server.endpoint(user=user), lambda: now_s))


def seen(kind: Kind, job: str = "a", why: str = "") -> Sighting:
    return Sighting("bad", NOW_S, kind, job, why)


def keys_of(server: SiteServer) -> dict[bytes, int]:
    """Return all keys, and how long they live, in s."""
    with server.client() as client:
        return {key: client.ttl(key) for key in client.scan_iter()}


def test_a_node_that_two_jobs_had_to_leave_is_used_last_by_the_next_one(server: SiteServer) -> None:
    told: list[str] = []
    for number in range(2):
        job = SiteMemory(history_of(server, "train"), f"train-{number}", partial(float, NOW_S - 3 + number))
        before = Roster(("n1", "n2"), ("n3",), primary="n1")
        job.follow(before, before.without(frozenset({"n2"}), 2, NOW_S), "without n2: too slow")
        job.close()
        assert not job.trouble
    last = SiteMemory(history_of(server, "reader"), "train-2", lambda: NOW_S)
    assert last.suspects(("n1", "n2", "n3"), told.append) == ["n2"]
    assert "train-1: without n2: too slow" in told[0]


def test_the_access_list_says_who_is_believed(server: SiteServer) -> None:
    trusted, only_reads, operator = (history_of(server, user) for user in ("train", "reader", "laggard"))
    trusted.add("job", seen("failed"))
    for history, refused in ((only_reads, "failed"), (trusted, "pinned"), (trusted, "cleared")):
        with pytest.raises(NodeHistoryError, match="the server's access list does not allow it"):
            history.add("job", seen(cast("Kind", refused)))
    operator.add("operator", seen("pinned"))
    assert [each.kind for each in only_reads.read()] == ["failed", "pinned"]
    with server.client() as client:  # an operator's words among those of jobs
        (key,) = client.scan_iter("laggard:nodes:jobs:*")
        client.append(key, '{"host": "bad", "time_s": 1.0, "kind": "cleared"}\n')
    assert [each.kind for each in only_reads.read()] == ["failed", "pinned"]


def test_an_operator_sees_pins_and_clears(server: SiteServer) -> None:
    def typed(*arguments: str, url: str = server.url) -> str:
        given = [f"--node-history={url}", *server.access(), *arguments]
        assert {word.partition("=")[0] for word in given} >= {word for word in SITE_NODES.split() if "--" in word}
        done = CliRunner().invoke(nodes, given, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert "nothing speaks against any node" in typed()
    assert "n1" in typed("--pin=n1", "--why=fan")
    (found,) = json.loads(typed("--json"))
    assert (found["host"], found["suspect"], found["chance"]) == ("n1", True, 1.0)
    assert "nothing speaks against any node" in typed("--clear=n1")
    with pytest.raises(NodeHistoryError, match="the server's access list does not allow it"):
        typed("--pin=n1", url=server.url.replace("laggard@", "train@"))
    with pytest.raises(UsageError, match="would send its password unencrypted: write rediss://"):
        CliRunner().invoke(nodes, ["--node-history=redis://db.example.org"], catch_exceptions=False)


def test_records_are_bounded_and_forgotten(server: SiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_server, "MAX_BYTES", 1000)
    history = history_of(server)
    for number in range(50):
        history.add("job", seen("failed", str(number), "x" * 10_000))
    found = history.read()
    assert 0 < len(found) < 10
    assert (found[-1].job, len(found[-1].why)) == ("49", 300)
    ((key, lives_s),) = keys_of(server).items()
    assert MEMORY_S < lives_s <= MEMORY_S + 7 * 86_400
    with server.client() as client:
        assert client.strlen(key) < 3000
    assert history_of(server, now_s=NOW_S + MEMORY_S - 60).read() == found
    assert history_of(server, now_s=NOW_S + MEMORY_S + 8 * 86_400).read() == []


def test_a_job_goes_on_without_a_server_that_is_gone_or_holds_something_else(server: SiteServer) -> None:
    told: list[str] = []
    job = SiteMemory(history_of(server), "train", lambda: NOW_S)
    job.note("n1", "slow")
    with server.client() as client:
        (key,) = client.scan_iter()
        client.delete(key)
        client.lpush(key, "x")
    assert job.suspects(["n1"], told.append) == []
    server.kill()
    assert job.suspects(["n1"], told.append) == []
    job.note("n1", "slow")
    assert ["WRONGTYPE" in told[0], "Connection refused" in told[1]] == [True, True]
    assert "nothing can be added to --node-history: Error" in job.trouble
