"""Two nodes' telemetry on one real state server: samples in, questions, rollups, dumps."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.environment import (
    ENDPOINT_FILE,
    JOB_BEGAN,
    LAUNCH,
    NODE,
    TELEMETRY_LEVEL,
    JobEnvironment,
)
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.client import request_dump
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.errors import DumpError, NodeError, QueryTooLargeError
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.nodes import sources
from laggard.telemetry.nodes.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.nodes.gathering import gather
from laggard.telemetry.nodes.mailbox import Mailbox
from laggard.telemetry.nodes.sources import NodesSource, answer_question
from laggard.telemetry.query import evaluate, query_from_json
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.parsing import series_query
from laggard.telemetry.sending.batches import MAX_BATCH_BYTES, socket_name
from laggard.telemetry.sending.numbers import NOT_IN_JOB
from laggard.telemetry.sending.sender import BatchSocket
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import Publisher, Rollups, Run
from laggard.telemetry.store.tiers import WINDOWS_S, Tiers
from tests.waiting import wait_until

SECOND_US = 1_000_000
DEADLINE_S = 20.0


def session_of(server: StateServer, directory: Path, node: str, level: int = 4) -> Session:
    folder = directory / node
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "endpoint.json"
    server.endpoint.save(path)
    return Session(JobEnvironment(path, 0, node, level), server.endpoint, server.endpoint.connect())


def variables(session: Session) -> dict[str, str]:
    environment = session.environment
    return {
        ENDPOINT_FILE: str(environment.endpoint_file),
        LAUNCH: str(environment.launch),
        NODE: environment.node,
        TELEMETRY_LEVEL: str(environment.telemetry_level),
        JOB_BEGAN: str(time.time()),
    }


def run_program(session: Session, source: str, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**variables(session), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def nodes(state_server: StateServer, tmp_path: Path) -> Iterator[list[NodeTelemetry]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(NodeTelemetry(session_of(state_server, tmp_path, node), TelemetrySettings()))
            for node in ("node1", "node2")
        ]


def everything_in(store: SampleStore) -> Iterator[TimeSeries]:
    """Return all samples of a store."""
    return store.read({metric for metric, _ in store.series_keys()}, 0, 2**60)


@pytest.fixture
def asker(state_server: StateServer) -> NodeAsker:
    return NodeAsker(state_server.endpoint.connect(), state_server.endpoint)


def test_a_programs_samples_are_in_its_nodes_store_and_found_from_every_node(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry], asker: NodeAsker
) -> None:
    session = session_of(state_server, tmp_path, "node2")
    program = """
import time
from laggard.telemetry import Telemetry
telemetry = Telemetry()
assert telemetry.level == 4
now_s = time.time()
for i in range(1000):
    telemetry.add_data("loss", i / 1000, timestamp=now_s + i / 1000, tagk="rank", tagv=3)
telemetry.add_data("too deep", 1.0, telemetry_level=5)
telemetry.add_data("loss", "no number")
telemetry.finalize()
assert telemetry.dropped == 1, telemetry.dropped
"""
    run_program(session, program)
    wait_until(lambda: nodes[1].store.size().samples == 1000)

    found = gather(asker, ["loss", "too deep"], 0, 2**60)

    (series,) = found.series
    assert (series.tags, found.missing) == ({"host": "node2", "rank": "3"}, [])
    assert series.values.tolist() == [i / 1000 for i in range(1000)]
    assert nodes[0].store.size().samples == 0


def test_several_processes_on_one_metric_are_kept_apart_when_asked(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import multiprocessing
from laggard.telemetry import Telemetry
telemetry = Telemetry(per_process=True)
def work():
    own = Telemetry(per_process=True)
    own.add_data("steps", 1.0)
    telemetry.add_data("shared", 1.0)
    own.finalize()
telemetry.add_data("steps", 1.0)
children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
for child in children: child.start()
for child in children: child.join()
"""
    run_program(session, program)
    wait_until(lambda: nodes[0].store.size().samples == 7)

    keys = nodes[0].store.series_keys()
    processes = [{dict(tags)["process"] for metric, tags in keys if metric == name} for name in ("steps", "shared")]

    assert len(processes[0]) == 4
    assert len(processes[1] & processes[0]) == 3


def test_tags_of_a_sender_are_on_all_its_samples_and_on_no_others(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
from laggard.telemetry import Telemetry
tagged, plain = Telemetry(tags={"leaf": "leaf1"}), Telemetry()
tagged.add_data("a", 1.0, tagk="peer_leaf", tagv="leaf2")
tagged.add_data("a", 1.0)
plain.add_data("a", 1.0)
plain.finalize()
"""
    run_program(session, program)
    wait_until(lambda: nodes[0].store.size().samples == 3)

    of_node = {"host": "node1"}
    assert sorted(nodes[0].store.series_keys()) == [
        ("a", tuple(sorted(tags.items())))
        for tags in (of_node, of_node | {"leaf": "leaf1"}, of_node | {"leaf": "leaf1", "peer_leaf": "leaf2"})
    ]


def test_a_step_is_sent_once_with_the_time_and_the_tags_of_what_it_is_of(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry], asker: NodeAsker
) -> None:
    program = """
import time
from laggard.telemetry import Telemetry
telemetry, now_s = Telemetry(), time.time()
for step in (100_000, 100_001):
    for name in ("loss", "accuracy"):
        telemetry.add_data(name, 0.5, now_s + step / 1e6, tagk="rank", tagv=3, step=step)
telemetry.add_data("loss", 0.25, now_s, tagk="rank", tagv=3, step=[])
telemetry.add_data("loss", 0.25, now_s, telemetry_level=5, step=100_002)
telemetry.finalize()
assert telemetry.dropped == 1, telemetry.dropped
"""
    run_program(session_of(state_server, tmp_path, "node1"), program)
    wait_until(lambda: nodes[0].store.size().samples == 7)

    (steps,) = gather(asker, ["step"], 0, 2**60).series
    (accuracies,) = gather(asker, ["accuracy"], 0, 2**60).series
    assert (steps.tags, steps.values.tolist()) == ({"host": "node1", "rank": "3"}, [100_000, 100_001])
    assert steps.times_us.tolist() == accuracies.times_us.tolist()


def test_invalid_samples_are_dropped_and_the_others_arrive(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
from laggard.telemetry import Telemetry
class Tensor:
    def __float__(self):
        raise RuntimeError("on a device that is lost")
    __str__ = __float__
class Unhashable(Tensor):
    __hash__ = Tensor.__float__
telemetry = Telemetry()
for name in (Tensor(), Unhashable()):
    telemetry.add_data(name, 1.5)
    telemetry.add_data("good", 1.5, tagk="rank", tagv=name)
for name in ("good", "", 5, None, ["list"], "x" * 1000, "half \\ud800"):
    for value in (1.5, "text", None, [1, 2], Tensor(), 10**400):
        telemetry.add_data(name, value)
telemetry.add_data("good", 2.5, telemetry_level="high")
telemetry.add_data("good", 2.5, timestamp="late")
telemetry.add_data("good", 2.5, timestamp=-1)
telemetry.add_data("good", 2.5, tagk="\\udfff", tagv=1)
telemetry.add_data("good", 2.5)
telemetry.finalize()
assert telemetry.dropped == 2 * 2 + 7 * 6 - 1 + 3, telemetry.dropped
"""
    run_program(session, program)
    wait_until(lambda: nodes[0].store.size().samples == 2)

    (found,) = everything_in(nodes[0].store)

    assert (found.metric, found.values.tolist()) == ("good", [1.5, 2.5])


def test_a_value_is_recorded_as_it_was_at_the_call_and_each_metric_says_once_what_it_drops(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import sys, time
import numpy as np
from laggard.telemetry import Telemetry
class Long:
    def __float__(self):
        raise ValueError("m" * 1_000_000)
telemetry = Telemetry()
sys.stderr = sys.stdout
loss = np.zeros(())
for step in range(1, 6):
    loss[...] = step
    telemetry.add_data("loss", loss, timestamp=np.array(time.time()))
    telemetry.add_data("accuracy", "0.5")
    telemetry.add_data("accuracy", None)
    telemetry.add_data("long", Long())
    telemetry.add_data("late", 1.0, timestamp=time.time() * 1000)
    telemetry.add_data("early", 1.0, timestamp=time.time() - 900)
    telemetry.add_data("step", 1.0, step)
    telemetry.add_data("m" * 1_000_000, 1.0, tagk="host", tagv="elsewhere")
    telemetry.add_data("other", 1.0, tagk="host", tagv="elsewhere")
telemetry.finalize()
print(telemetry.dropped)
"""
    *warnings, dropped = run_program(session, program).splitlines()
    wait_until(lambda: nodes[0].store.size().samples == 10)

    found, other = sorted(everything_in(nodes[0].store), key=lambda each: each.metric)
    assert (found.metric, found.values.tolist()) == ("loss", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (other.metric, dict(other.tags)) == ("other", {"host": "node1"})
    assert int(dropped) == 35
    dropping = "dropping samples of '{}' that add_data cannot keep, such as this one: "
    assert [re.sub(r"\d{10}[.\d]*", "T", line) for line in warnings] == [
        f"{dropping.format('accuracy')}text ('0.5')",
        f"{dropping.format('long')}Long: {'m' * 294}",
        f"{dropping.format('late')}its timestamp, the third argument, is T, which is {NOT_IN_JOB}",
        f"{dropping.format('early')}its timestamp, the third argument, is T, which is {NOT_IN_JOB}",
        f"{dropping.format('step')}its timestamp, the third argument, is 1, which is {NOT_IN_JOB}",
        f"dropping the samples of {'m' * 80!r} with the tag 'host'='elsewhere': not a valid name",
    ]


def test_a_number_that_a_gpu_computes_late_arrives_late_and_holds_up_no_other(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import time
from laggard.telemetry.sending import sender
class Late(sender.Pending):
    ready = False
    def __init__(self): pass
    def value(self): return 2.5
late = Late()
sender.number_of = lambda value: late
telemetry = sender.Telemetry()
telemetry.add_data("late", "the tensor", timestamp=time.time())
telemetry.add_data("loss", 1.5)
while sender._sender().buffer or not sender._sender()._pending:
    time.sleep(0.01)
Late.ready = True
telemetry.finalize()
"""
    run_program(session, program)
    wait_until(lambda: nodes[0].store.size().samples == 2)

    found = everything_in(nodes[0].store)
    assert {each.metric: each.values.tolist() for each in found} == {"late": [2.5], "loss": [1.5]}


def test_what_was_sent_is_kept_when_a_process_exits_abruptly(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import os, time
from laggard.telemetry.sending.sender import Telemetry, _sender
telemetry = Telemetry()
telemetry.add_data("m", 1.0)
while telemetry._buffer:
    time.sleep(0.01)
with _sender()._lock:  # what was taken from the buffer is on its way
    os._exit(0)
"""
    run_program(session, program)

    wait_until(lambda: nodes[0].store.size().samples == 1)


def test_what_children_of_multiprocessing_added_last_is_sent_when_they_end(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import multiprocessing
from laggard.telemetry import Telemetry
def run(method, target, *arguments):
    child = multiprocessing.get_context(method).Process(target=target, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0, method
def work():
    assert telemetry.dropped == 0, "what the parent dropped is the parent's"
    telemetry.add_data("made before", 1.0)
for method in ("fork", "forkserver", "spawn"):
    run(method, exec, f"from laggard.telemetry import Telemetry; Telemetry().add_data('{method}', 1.0)")
telemetry = Telemetry()
telemetry.add_data("made before", "text")
run("fork", work)
"""
    run_program(session, program)

    arrived = {"fork", "forkserver", "spawn", "made before"}
    wait_until(lambda: {metric for metric, _ in nodes[0].store.series_keys()} == arrived)


def test_a_new_name_for_each_sample_does_not_fill_the_memory(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    session = session_of(state_server, tmp_path, "node1")
    program = """
import laggard.telemetry.sending.sender as sender
sender.MAX_SERIES = 100
telemetry = sender.Telemetry()
for i in range(1000):
    telemetry.add_data(f"step{i}", 1.0)
telemetry.finalize()
assert telemetry.dropped == 900, telemetry.dropped
"""
    run_program(session, program)

    wait_until(lambda: nodes[0].store.size().samples == 100)


def test_a_full_buffer_drops_the_oldest_counts_and_says_so_once_and_the_program_goes_on(
    state_server: StateServer, tmp_path: Path
) -> None:
    session = session_of(state_server, tmp_path, "node-without-store")
    program = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import laggard.telemetry.sending.sender as sender
sender.BUFFER_SAMPLES = 1000
telemetry = sender.Telemetry()
for i in range(200_000):
    telemetry.add_data("m", i)
telemetry.finalize()
print(telemetry.dropped, len(telemetry._buffer))
"""
    said, numbers, _ = run_program(session, program).splitlines()
    dropped, held = map(int, numbers.split())

    assert "the oldest of 1000 are dropped, and counted in telemetry.dropped" in said
    assert dropped > 100_000
    assert held <= 1000


def test_a_process_that_ends_while_its_node_has_no_telemetry_says_how_many_samples_are_lost(
    state_server: StateServer, tmp_path: Path
) -> None:
    session = session_of(state_server, tmp_path, "node-without-store")
    program = """
import logging, sys
from laggard.telemetry import Telemetry
logging.basicConfig(stream=sys.stdout, format="%(message)s")
telemetry = Telemetry()
for i in range(7):
    telemetry.add_data(f"m{i % 2}", i)
    telemetry.finalize()
"""
    words = "7 samples are lost: the telemetry of node-without-store had not taken them when this process ended\n"

    assert run_program(session, program) == words


def test_an_aggregation_over_nodes_equals_that_of_one_store_with_all_samples(
    nodes: list[NodeTelemetry], asker: NodeAsker
) -> None:
    whole = SampleStore(1e9, clock=time.time)
    random = np.random.default_rng(3)
    now_us = round(time.time()) * SECOND_US
    for i, node in enumerate(nodes):
        for gpu in range(3):
            key = key_of("power", {"host": f"node{i + 1}", "gpu": str(gpu)})
            times = np.sort(now_us - random.integers(0, 100 * SECOND_US, 150))
            values = random.normal(300, 20, 150)
            node.store.extend(key, times, values)
            whole.extend(key, times, values)
    source = NodesSource(asker, make_rollups(), lambda: ["node1", "node2", "gone"])
    host = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}

    for name in ("avg", "dev", "p95", "none"):
        for downsample in ("10s-avg", ""):
            body = {"metric": "power", "aggregator": name, "downsample": downsample, "filters": [host]}
            query = query_from_json({"start": "200s-ago", "queries": [body]}, now_us + SECOND_US)
            span = Span(query.start_us, query.end_us)
            expected = evaluate(query.queries[0], span, whole.read(["power"], 0, 2**60))

            found = source.evaluate(query.queries[0], span)

            assert found.missing == ["gone"]
            assert [a.tags for a in found.answers] == [a.tags for a in expected]
            for ours, theirs in zip(found.answers, expected, strict=True):
                np.testing.assert_array_equal(ours.times_us, theirs.times_us)
                np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-9)


def test_a_node_that_is_gone_is_not_waited_for(nodes: list[NodeTelemetry], asker: NodeAsker) -> None:
    assert len(nodes) == 2
    begun_s = time.monotonic()

    replies = asker.ask({"kind": "keys", "metric": ""}, hosts=["node1", "gone", "node2"], deadline_s=DEADLINE_S)

    assert replies.missing == ["gone"]
    assert set(replies.by_host) == {"node1", "node2"}
    assert time.monotonic() - begun_s < DEADLINE_S / 2


def test_a_node_that_hangs_is_named_after_the_deadline(
    state_server: StateServer, nodes: list[NodeTelemetry], asker: NodeAsker
) -> None:
    assert nodes
    channel = state_server.endpoint.key("telemetry-ask", "hung")
    with state_server.endpoint.connect().pubsub() as silent:  # type: ignore[no-untyped-call]
        silent.subscribe(channel)
        wait_until(lambda: "hung" in asker.hosts())

        replies = asker.ask({"kind": "newest"}, deadline_s=0.5)

    assert (replies.missing, sorted(replies.by_host)) == (["hung"], ["node1", "node2"])


def test_an_error_while_waiting_for_nodes_does_not_affect_later_questions(
    nodes: list[NodeTelemetry], asker: NodeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(nodes) == 2

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(Mailbox, "take", fail)
            with pytest.raises(ZeroDivisionError):
                asker.ask({"kind": "newest"})
        assert asker.ask({"kind": "keys", "metric": ""}).missing == []


def test_several_queries_are_one_question_and_too_large_only_together(
    nodes: list[NodeTelemetry], asker: NodeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = round(time.time()) * SECOND_US
    for number, node in enumerate(nodes):
        for metric in ("power", "load"):
            times_us = now_us - np.arange(60, dtype=np.int64)[::-1] * SECOND_US
            node.store.extend(key_of(metric, {"host": f"node{number + 1}"}), times_us, np.arange(60.0) + number)
    asked = [
        (series_query(metric, downsample), Span(now_us - 100 * SECOND_US, now_us))
        for metric in ("power", "load", "none")
        for downsample in ("1s-avg", "10s-p95")
    ]
    questions: list[dict[str, Any]] = []
    ask = NodeAsker.ask

    def noted(self: NodeAsker, question: dict[str, Any], **how: Any) -> Any:
        questions.append(question)
        return ask(self, question, **how)

    monkeypatch.setattr(NodeAsker, "ask", noted)
    source = NodesSource(asker, make_rollups())

    together = source.evaluate_all(asked)

    assert len(questions) == 1
    for each, found in zip(asked, together, strict=True):
        alone = source.evaluate(*each).answers
        assert [(a.tags, a.values.tolist()) for a in found.answers] == [(a.tags, a.values.tolist()) for a in alone]
    monkeypatch.setattr(sources, "MAX_TRAVELLING_SAMPLES", 70 * len(nodes))
    with pytest.raises(QueryTooLargeError):
        source.evaluate_all(asked)
    assert source.evaluate_all(asked[:1])


def test_filters_stop_when_the_answer_is_no_longer_waited_for() -> None:
    history, run = make_history(1e9, time.time), Run.new("node1", 0)
    history.samples.add("m", {"host": "node1"}, 1, 1.0)
    host = {"type": "regexp", "tagk": "host", "filter": "n.*1"}
    asked: dict[str, Any] = {
        "query": {"metric": "m", "filters": [host]},
        "start_us": 0,
        "end_us": 2,
        "milliseconds": False,
    }
    question: dict[str, Any] = {"kind": "series", "asked": [asked], "samples": 1000}

    assert answer_question(history, run, {**question, "until_s": time.monotonic() + DEADLINE_S})["answers"]
    with pytest.raises(QueryTooLargeError, match="too long"):
        answer_question(history, run, {**question, "until_s": time.monotonic() - 1})


def test_an_unknown_question_is_refused(nodes: list[NodeTelemetry], asker: NodeAsker) -> None:
    assert nodes
    with pytest.raises(NodeError, match="nonsense"):
        asker.ask({"kind": "nonsense"}, deadline_s=DEADLINE_S)


def test_an_invalid_batch_closes_the_connection_and_has_no_other_effect(
    tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    path = tmp_path / "node1" / socket_name("node1")
    for rubbish in (b"\xff" * 100, (MAX_BATCH_BYTES + 1).to_bytes(4, "little"), b"\x04\0\0\0\0\0\0\0", b"\x01"):
        other = BatchSocket(path)._connect()
        other.sendall(rubbish)
        other.close()

    good = BatchSocket(path)
    now_us = round(time.time() * SECOND_US)
    assert good.send({key_of("m", {}): (np.array([now_us]), np.array([2.0]))})
    good.close()

    wait_until(lambda: nodes[0].store.size().samples == 1)


def test_only_the_owner_can_open_the_socket(tmp_path: Path, nodes: list[NodeTelemetry]) -> None:
    assert nodes
    assert (tmp_path / "node1" / socket_name("node1")).stat().st_mode & 0o777 == 0o600


def make_history(window_s: float, clock: Callable[[], float]) -> History:
    tiers_s = {SECOND_US: 1e9, 10 * SECOND_US: 1e9, 60 * SECOND_US: 1e9}
    tiers = Tiers(tiers_s, max_bytes=1 << 30, clock=clock)
    return History(tiers, SampleStore(window_s, clock=clock, observe=tiers.add))


def make_rollups() -> Rollups:
    return Rollups(WINDOWS_S, max_bytes=1 << 30, clock=time.time)


def test_rollups_answer_as_the_samples_would() -> None:
    clock_s = 1_700_000_000.0
    node, rollups = make_history(1e9, lambda: clock_s), make_rollups()
    publisher = Publisher(Run.new("a", 0), node.tiers)
    start_us = round(clock_s - 1000) * SECOND_US
    times = start_us + np.arange(0, 900 * SECOND_US, SECOND_US // 2)
    for begin in range(0, len(times), 100):
        some = times[begin : begin + 100]
        for gpu in range(2):
            node.samples.extend(key_of("power", {"host": "a", "gpu": str(gpu)}), some, np.sin(some / 7e6) + gpu)
        publisher.add(node.tiers.fold())
        if begin % 300 == 0:
            rollups.take(publisher.message() or b"")
            publisher.received()
    rollups.take(publisher.message() or b"")

    for function in ("avg", "max", "min", "count", "sum", "last"):
        body = {"metric": "power", "aggregator": "sum", "downsample": f"30s-{function}"}
        query = query_from_json(
            {"start": start_us // SECOND_US, "end": start_us // SECOND_US + 900, "queries": [body]}, 0
        )
        (sub_query,), span = query.queries, Span(query.start_us, query.end_us)
        (expected,) = evaluate(sub_query, span, node.samples.read(["power"], 0, 2**60))

        assert rollups.can_answer(sub_query, span)
        (found,) = evaluate(sub_query, span, rollups.history.downsampled(sub_query, span).series, downsampled=True)

        np.testing.assert_array_equal(found.times_us, expected.times_us)
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-9, atol=1e-9)


def test_a_dump_of_all_nodes_is_read_back_as_it_was(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry], asker: NodeAsker
) -> None:
    del nodes
    for node in ("node3", "node4"):
        settings = TelemetrySettings(dump_dir=str(tmp_path / "dumps"))
        with NodeTelemetry(session_of(state_server, tmp_path, node), settings) as telemetry:
            now_us = round(time.time()) * SECOND_US
            telemetry.store.extend(
                key_of('m,\n"', {"host": node, "k": "a=b&c"}), np.array([now_us - 1, now_us]), np.array([0.1, -1e300])
            )
            (written,) = request_dump(asker, node, deadline_s=DEADLINE_S).written

        host, _, path = written.partition(":")
        assert (host, Path(path).parent) == (node, tmp_path / "dumps")

    store = read_dump([tmp_path / "dumps"]).samples

    series = sorted(everything_in(store), key=lambda each: each.tags["host"])
    assert [dict(each.tags) for each in series] == [{"host": f"node{i}", "k": "a=b&c"} for i in (3, 4)]
    assert [each.values.tolist() for each in series] == [[0.1, -1e300]] * 2


def test_a_dump_that_cannot_be_written_is_reported(state_server: StateServer, tmp_path: Path, asker: NodeAsker) -> None:
    (tmp_path / "file").touch()
    settings = TelemetrySettings(dump_dir=str(tmp_path / "file" / "dumps"))
    with NodeTelemetry(session_of(state_server, tmp_path, "node7"), settings):
        dumps = request_dump(asker, "node7", deadline_s=DEADLINE_S)

    assert dumps.written == []
    (missing,) = dumps.missing
    assert missing.startswith("node7 could not write its dump: ")


@pytest.mark.root("to mount a small file system")
def test_a_full_dump_folder_is_named_and_nothing_is_left_in_it(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], capture_output=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode()}")
    try:
        settings = TelemetrySettings(dump_dir=str(small))
        with NodeTelemetry(session_of(state_server, tmp_path, "node7"), settings) as telemetry:
            noise = np.random.default_rng(0).random(10_000)
            telemetry.store.extend(key_of("m", {}), int(time.time() * 1e6) + np.arange(len(noise)), noise)
            dumps = request_dump(asker, "node7", deadline_s=DEADLINE_S)
        assert dumps.written == []
        assert dumps.missing == [f"node7 could not write its dump: [Errno 28] No space left on device: '{small}'"]
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.parametrize("order", [("node5", "node6"), ("node6", "node5")])
def test_one_node_can_dump_all_nodes_periodically_and_the_nodes_end_in_any_order(
    state_server: StateServer, tmp_path: Path, order: tuple[str, str]
) -> None:
    dumps = tmp_path / "dumps"
    settings = TelemetrySettings(dump_dir=str(dumps), dump_node="node5", dump_interval=0.1)
    now_us = round(time.time()) * SECOND_US

    with contextlib.ExitStack() as stack:
        for node in order:  # they end in the opposite order, the one that dumps in the midst of a dump
            session = session_of(state_server, tmp_path, node)
            telemetry = stack.enter_context(NodeTelemetry(session, settings, keep_interval_s=0.05))
            telemetry.store.extend(key_of("m", {"host": node}), np.array([now_us]), np.array([1.5]))

        def newest() -> set[str]:
            files = sorted(dumps.glob("all-*.csv.gz"))
            return {dict(tags)["host"] for _, tags in read_dump(files[-1:]).series_keys()} if files else set()

        wait_until(lambda: newest() == {"node5", "node6"})

    assert {path.name.partition("-")[0] for path in dumps.iterdir()} == {"all"}


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_dump_that_waits_for_a_node_when_its_own_node_ends_is_abandoned_and_leaves_nothing(
    state_server: StateServer, tmp_path: Path, asker: NodeAsker, is_asked_for: bool
) -> None:
    # The node is waited for longer than the test may take: the end alone can end the wait.
    node8 = functools.partial(NodeTelemetry, keep_interval_s=0.05, gather_deadline_s=1e6, stop_deadline_s=DEADLINE_S)
    asked, go_on = threading.Event(), threading.Event()

    def answer(question: Mapping[str, Any]) -> Any:
        if question["kind"] == "everything":
            asked.set()
            go_on.wait(DEADLINE_S)
        return [["m", []]]

    settings = TelemetrySettings(
        dump_dir=str(tmp_path / "dumps"), dump_node="node8", dump_interval=0 if is_asked_for else 0.1
    )
    endpoint, dumps = state_server.endpoint, tmp_path / "dumps"

    def ask_until_the_node_is_asked() -> None:
        while not asked.is_set():  # a busy machine may keep it from saying in time what it has
            asker.ask({"kind": "dump"}, hosts=["node8"])

    asking = threading.Thread(target=ask_until_the_node_is_asked)
    with endpoint.connect() as client, NodeAnswerer(client, endpoint, "held", answer):
        with node8(session_of(state_server, tmp_path, "node8"), settings) as telemetry:
            if is_asked_for:
                asking.start()
            assert asked.wait(DEADLINE_S)
            assert list(dumps.glob(".all.*"))
        assert list(dumps.glob(".all.*")) == []
        assert not telemetry._keeper.is_alive()
        go_on.set()
    if is_asked_for:
        asking.join(DEADLINE_S)


def test_a_node_that_was_waited_for_in_vain_is_asked_but_not_waited_for_until_it_answers(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    assert len(nodes) == 2
    deadline_s = 1e6
    times_s = [0.0, 2 * deadline_s]  # the first question is over before anybody can answer
    endpoint = state_server.endpoint
    asker = NodeAsker(
        endpoint.connect(),
        endpoint,
        clock=lambda: times_s.pop(0) if times_s else time.monotonic(),
        deadline_s=deadline_s,
    )
    hosts, question = ["hung", "node1", "node2"], {"kind": "keys", "metric": ""}
    with endpoint.connect().pubsub() as silent:  # type: ignore[no-untyped-call]
        silent.subscribe(endpoint.key("telemetry-ask", "hung"))
        silent.get_message(timeout=DEADLINE_S)
        assert asker.ask(question, hosts=hosts).missing == hosts

        wait_until(lambda: set(asker.ask(question, hosts=hosts).by_host) == {"node1", "node2"})

        assert asker.ask(question, hosts=hosts).missing == ["hung"]
        assert silent.get_message(timeout=DEADLINE_S), "it is asked all the same"
        assert asker.ask(question, hosts=["hung"]).missing == ["hung"], "without others, it is waited for briefly"

    with NodeTelemetry(session_of(state_server, tmp_path, "hung"), TelemetrySettings()):
        wait_until(lambda: asker.ask(question, hosts=hosts).missing == [])


def test_a_file_that_is_not_a_dump_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(b"hello")

    with pytest.raises(DumpError, match=r"x\.csv\.gz"):
        read_dump([tmp_path])
    with pytest.raises(DumpError, match="no dump"):
        read_dump([Path(__file__).parent])


def test_the_analysis_client_reads_and_dumps_from_any_process(
    state_server: StateServer, tmp_path: Path, nodes: list[NodeTelemetry]
) -> None:
    begin_launch(state_server.endpoint.connect(), state_server.endpoint, 0)
    now_us = round(time.time()) * SECOND_US
    nodes[1].store.extend(key_of("m", {"host": "node2", "gpu": "0"}), np.array([now_us]), np.array([1.5]))
    program = """
from laggard.telemetry import AnalysisClient
client = AnalysisClient()
client.connect()
assert client.get_metrics() == {"m"}
(series,) = client.get_data("m", tags="gpu")
assert (series["metric"], series["tags"], list(series["dps"].values())) == ("m", {"host": "node2", "gpu": "0"}, [1.5])
assert client.get_data(["m"], tags={"gpu": 1}) == []
assert client.get_data("m", start_time=2e9) == []
assert client.get_data("unknown") == []
assert client.get_data("m", whole=True).missing == ()
client.reboot(exclude_hostnames="node2")
"""
    run_program(session_of(state_server, tmp_path, "node1"), program)


def test_outside_a_job_nothing_is_sent_and_nothing_fails() -> None:
    program = """
from laggard.telemetry import Telemetry
telemetry = Telemetry()
telemetry.add_data("m", 1.0)
telemetry.finalize()
assert telemetry.level == 0 and telemetry.dropped == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2], env={})
