"""A job's whole life in queries and dumps: after its samples were dropped, and after a node was lost."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control
from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.client import request_dump
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.nodes.bus import Listener, NodeAsker
from laggard.telemetry.nodes.sources import LocalSource, NodesSource
from laggard.telemetry.query import SubQuery, query_from_json
from laggard.telemetry.query.engine import Span
from laggard.telemetry.server.lost import lost_answerer
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.rollups import ROLLUPS, Publisher, Rollups, Run
from laggard.telemetry.store.tiers import WINDOWS_S
from tests.integration.test_telemetry_nodes import session_of
from tests.waiting import DEADLINE_S, wait_until

SECOND_US = 1_000_000
HOUR_S = 3600
# Nodes keep samples for five minutes.
JOB_S = 8 * HOUR_S


def now_s() -> int:
    """Return a whole minute that has begun."""
    return int(time.time()) // 60 * 60


def live(telemetry: NodeTelemetry, host: str, end_s: int, seconds: int) -> None:
    """Let a node have seen some hours, with a sample of 1 to 60 each second."""
    for begin_s in range(end_s - seconds, end_s, 600):
        times_us = np.arange(begin_s, begin_s + 600, dtype=np.int64) * SECOND_US
        telemetry.store.extend(key_of("m", {"host": host}), times_us, (np.arange(600) % 60 + 1).astype(np.float64))
        telemetry.store.trim()


def ask(downsample: str, begin_s: int, end_s: int, aggregator: str = "none") -> tuple[SubQuery, Span]:
    body = {"metric": "m", "aggregator": aggregator, "downsample": downsample}
    query = query_from_json({"start": begin_s, "end": end_s * 1000 - 1, "queries": [body]}, 0)
    return query.queries[0], Span(query.start_us, query.end_us, query.milliseconds)


@pytest.fixture
def asker(state_server: StateServer) -> NodeAsker:
    return NodeAsker(state_server.endpoint.connect(), state_server.endpoint)


def make_rollups() -> Rollups:
    return Rollups(WINDOWS_S, max_bytes=1 << 30, clock=time.time)


@pytest.fixture
def rollups(state_server: StateServer) -> Iterator[Rollups]:
    """Rollups that listen as those of a telemetry server do."""
    found = make_rollups()
    endpoint = state_server.endpoint
    with Listener(endpoint.connect(), [endpoint.key(ROLLUPS)], found.take):
        yield found


def test_a_query_reaches_from_the_last_second_to_the_jobs_start(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker
) -> None:
    end_s = now_s()
    with NodeTelemetry(session_of(state_server, tmp_path, "node1"), TelemetrySettings()) as telemetry:
        live(telemetry, "node1", end_s, JOB_S)
        wait_until(lambda: telemetry.store.size().samples < JOB_S)
        source = NodesSource(asker, make_rollups())

        whole = source.evaluate(*ask("1m-sum", end_s - JOB_S, end_s))
        last = source.evaluate(*ask("1s-avg", end_s - 10, end_s))
        medians = source.evaluate(*ask("10m-median", end_s - JOB_S, end_s))

    (answer,) = whole.answers
    assert (len(answer.values), set(answer.values.tolist()), whole.approximate_us) == (480, {60 * 61 / 2}, 0)
    assert (len(last.answers[0].values), last.approximate_us) == (10, 0)
    assert (len(medians.answers[0].values), medians.approximate_us) == (48, SECOND_US)


def test_what_a_lost_node_had_is_there_up_to_its_loss(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker, rollups: Rollups
) -> None:
    end_s = now_s()
    settings = TelemetrySettings(dump_dir=str(tmp_path / "dumps"))
    with contextlib.ExitStack() as stack:
        nodes = {
            host: stack.enter_context(NodeTelemetry(session_of(state_server, tmp_path, host), settings))
            for host in ("node1", "node2")
        }
        for host, node in nodes.items():
            live(node, host, end_s, HOUR_S)
        nodes["node2"].__exit__(None, None, None)  # publishes what it has, as it would have done every ten seconds
        wait_until(lambda: key_of("m", {"host": "node2"}) in rollups.history.series_keys())
        wait_until(lambda: asker.hosts() == ["node1"])

        found = NodesSource(asker, rollups, lambda: ["node1", "node2"]).evaluate(*ask("1m-sum", end_s - HOUR_S, end_s))
        total = NodesSource(asker, rollups).evaluate(*ask("1m-sum", end_s - HOUR_S, end_s, "sum"))

        with lost_answerer(session_of(state_server, tmp_path, "node1"), rollups, asker, str(tmp_path / "dumps")):
            assert request_dump(asker, "", deadline_s=DEADLINE_S).missing == []
            assert asker.hosts() == ["node1"]

    replayed = LocalSource(read_dump([tmp_path / "dumps"]))
    tens = replayed.evaluate(*ask("10s-sum", end_s - HOUR_S, end_s))
    assert [(answer.tags["host"], answer.values.sum()) for answer in tens.answers] == [
        (host, 60 * 60 * 61 / 2) for host in ("node1", "node2")
    ]
    finer = replayed.evaluate(*ask("1s-avg", end_s - 100, end_s))
    assert [len(answer.values) for answer in finer.answers] == [100, 10]
    assert finer.approximate_us == 10 * SECOND_US
    assert [answer.tags["host"] for answer in found.answers] == ["node1", "node2"]
    assert found.missing == ["node2"]
    for answer in found.answers:
        assert set(answer.values.tolist()) == {60 * 61 / 2}
        assert len(answer.values) == 60
    assert set(total.answers[0].values.tolist()) == {60 * 61.0}


def test_a_node_that_was_started_anew_goes_on_where_it_was(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker, rollups: Rollups
) -> None:
    end_s = now_s()
    before = NodeTelemetry(session_of(state_server, tmp_path, "node1"), TelemetrySettings(), lambda: end_s - 600.0)
    with before:
        live(before, "node1", end_s - 600, 600)
    wait_until(lambda: len(rollups.history.series_keys()) == 1)

    with NodeTelemetry(
        session_of(state_server, tmp_path, "node1"), TelemetrySettings(), lambda: end_s - 600.0
    ) as after:
        live(after, "node1", end_s, 600)
        source = NodesSource(asker, rollups)
        found = [
            source.evaluate(*ask("1m-sum", end_s - 1200, end_s, aggregator)).answers for aggregator in ("none", "sum")
        ]

    for (answer,) in found:
        assert len(answer.values) == 20
        assert set(answer.values.tolist()) == {60 * 61 / 2}


def test_a_node_says_once_how_many_seconds_of_samples_fit_if_they_are_fewer_than_asked_for(
    state_server: StateServer, tmp_path: Path
) -> None:
    client, endpoint = state_server.endpoint.connect(), state_server.endpoint
    begin_launch(client, endpoint, 0)
    control = Control(client, endpoint, 0)
    number = control.last_request_id()
    settings = TelemetrySettings(store_megabytes=1)
    noise = np.random.default_rng(0).random(200_000)
    with NodeTelemetry(session_of(state_server, tmp_path, "node1"), settings, keep_interval_s=0.01) as telemetry:
        begin_us = round((time.time() - 200) * SECOND_US)
        for part in np.split(noise, 20):
            telemetry.store.extend(key_of("m", {}), begin_us + np.arange(len(part)) * 1000, part)
            begin_us += len(part) * 1000
        (_, request), *more = control.requests(number, DEADLINE_S)

    assert more == []
    assert re.fullmatch(
        r"node1: 1 MiB \(store_megabytes\) hold the samples of about \d+ s of 300 s \(default_tmdb_window\); "
        "before that there are summaries of a second",
        *request.body,
    )


def test_a_dump_has_what_a_telemetry_process_had_that_was_killed_a_moment_ago(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker, rollups: Rollups
) -> None:
    end_s, dumps = now_s(), str(tmp_path / "dumps")
    session, settings = session_of(state_server, tmp_path, "node1"), TelemetrySettings(dump_dir=dumps)
    with NodeTelemetry(session, settings) as before:
        live(before, "node1", end_s, 600)
    wait_until(lambda: len(rollups.history.series_keys()) == 1)

    with NodeTelemetry(session, settings), lost_answerer(session, rollups, asker, dumps):
        found = request_dump(asker, "", ["node1", "node2"], deadline_s=DEADLINE_S)

    assert found.missing == ["node2 wrote no dump: its telemetry does not run"]
    (answer,) = LocalSource(read_dump([tmp_path / "dumps"])).evaluate(*ask("1m-sum", end_s - 600, end_s)).answers
    assert answer.values.tolist() == [60 * 61 / 2] * 10


@pytest.mark.parametrize("of_all", [False, True])
def test_a_dump_and_its_replay_hold_the_whole_job(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker, *, of_all: bool
) -> None:
    end_s = now_s()
    settings = TelemetrySettings(dump_dir=str(tmp_path / "dumps"), dump_node="node1" if of_all else "")
    with NodeTelemetry(session_of(state_server, tmp_path, "node1"), settings) as telemetry:
        live(telemetry, "node1", end_s, JOB_S)
        live(telemetry, "late", end_s - HOUR_S, 600)  # came when its hour was over
        assert request_dump(asker, settings.dump_node, deadline_s=DEADLINE_S).missing == []
        live(telemetry, "node1", end_s + 600, 600)
        assert request_dump(asker, settings.dump_node, deadline_s=DEADLINE_S).missing == []

    history = read_dump([tmp_path / "dumps"])

    source = LocalSource(history)
    found = source.evaluate(*ask("1m-sum", end_s - JOB_S, end_s + 600))
    by_host = {answer.tags["host"]: answer.values.tolist() for answer in found.answers}
    assert by_host == {"node1": [60 * 61 / 2] * 490, "late": [60 * 61 / 2] * 10}
    assert found.approximate_us == 0
    span_us = history.span_us()
    assert span_us is not None
    assert span_us[0] == (end_s - JOB_S) * SECOND_US


def test_overlapping_dumps_count_each_minute_once(state_server: StateServer, tmp_path: Path, asker: NodeAsker) -> None:
    end_s = now_s()
    settings = TelemetrySettings(dump_dir=str(tmp_path / "dumps"))
    with NodeTelemetry(session_of(state_server, tmp_path, "node1"), settings) as telemetry:
        live(telemetry, "node1", end_s - 600, 600)
        assert request_dump(asker, "", deadline_s=DEADLINE_S).missing == []
        (first,) = (tmp_path / "dumps").iterdir()
        first.rename(first.with_name("first.csv.gz"))
        live(telemetry, "node1", end_s, 600)
        assert request_dump(asker, "", deadline_s=DEADLINE_S).missing == []

    found = LocalSource(read_dump([tmp_path / "dumps"])).evaluate(*ask("1m-count", end_s - 1200, end_s))

    assert found.answers[0].values.tolist() == [60.0] * 20


def test_rollups_wait_for_a_server_that_listens(state_server: StateServer, tmp_path: Path) -> None:
    settings = replace(TelemetrySettings(), collector_rate=1.0)
    with NodeTelemetry(session_of(state_server, tmp_path, "node1"), settings) as telemetry:
        publisher = Publisher(Run.new("node1", 0), telemetry.history.tiers)
        found = make_rollups()
        for begin_s in (0, 20, 40):
            times_us = (now_s() - 600 + np.arange(begin_s, begin_s + 20, dtype=np.int64)) * SECOND_US
            telemetry.store.extend(key_of("m", {"host": "node1"}), times_us, np.ones(20))
            publisher.add(telemetry.history.tiers.fold())
            message = publisher.message()
        assert message is not None
        found.take(message)
        publisher.received()

    assert publisher.message() is None
    (series,) = found.history.downsampled(*ask("10s-avg", now_s() - 700, now_s())).series
    assert series.values.tolist() == [1.0] * 6


@pytest.mark.parametrize("message", [b"", b"\0" * 40, b"\xff" * 12 + b"{}", bytes(range(200))])
def test_a_message_that_is_no_rollups_is_refused(message: bytes) -> None:
    rollups = make_rollups()
    with pytest.raises(ValueError, match="not valid rollups"):
        rollups.take(message)
    assert rollups.history.series_keys() == []
