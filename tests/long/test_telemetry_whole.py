"""Whatever is killed, stopped, late or forked: what is read is all that was sent, or says what is missing.

Real processes: a state server, two nodes' telemetry, the telemetry server, and a program on each node. Each seed is
another course of events; after each of them everything is read in every public way.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from operator import gt
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE, TELEMETRY_LEVEL, JobEnvironment
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer
from laggard.telemetry import AnalysisClient
from laggard.telemetry.client import request_dump
from laggard.telemetry.nodes.bus import Listener, NodeAsker
from laggard.telemetry.nodes.mailbox import PING
from laggard.telemetry.store.rollups import ROLLUPS, _parsed
from laggard.telemetry.store.summaries import COLUMNS
from tests.integration.serving import Served, server_process
from tests.queries import sub_query
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
HOSTS = ("node1", "node2")
COURSES, EVENTS = 10, 8
# In each round both nodes' telemetry is killed, at some moment of the ten seconds between two publications.
ROUNDS, SPREAD_S = 10, 5.0
SECOND_US = 1_000_000
# How long a dump waits for a node that is stopped.
DUMP_WAIT_S = 5.0
# Sends as many samples as it is told to, itself or from a fork of it, and says at which times, and whether some of them
# are still in its hands.
SENDS = """
import json, os, sys, time
from laggard import Telemetry
from laggard.telemetry.sending.sender import _sender
telemetry, host = Telemetry(per_process=True), os.environ["LAGGARD_NODE"]

def send(count):
    begin_us = time.time_ns() // 1000
    times_us = [begin_us + 10 * i for i in range(count)]
    for time_us in times_us:
        telemetry.add_data(f"m-{host}", 1.0, time_us / 1e6)
    telemetry.finalize()
    print(json.dumps([times_us, bool(_sender().buffer or _sender()._unsent)]), flush=True)

for line in sys.stdin:
    what, count = line.split()
    if what == "send":
        send(int(count))
    elif child := os.fork():
        os.waitpid(child, 0)
    else:
        send(int(count))
        os._exit(0)
"""


class Node:
    """A node: its telemetry process, its program, and what the program has sent."""

    def __init__(self, course: Course, host: str) -> None:
        self.host = host
        folder = course.folder / host
        self._environ = course.prepare(folder, host)
        self.telemetry: subprocess.Popen[bytes] | None = None
        self.program = self._start_program()
        self.is_stopped = self.was_killed = False
        self.sent: set[int] = set()  # times of samples
        self.in_hand: set[int] = set()  # of those that the program itself has still to hand over
        self.may_lack: set[int] = set()  # of those that ended with the process that had them in hand

    def _start_program(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SENDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            cwd=ROOT,
            text=True,
        )

    @property
    def is_away(self) -> bool:
        """Whether nobody answers for it."""
        return self.telemetry is None or self.is_stopped

    def start(self) -> None:
        """Start its telemetry, as its agent does."""
        run = [sys.executable, "-m", "laggard.collectors.metrics.process"]
        self.telemetry = subprocess.Popen(run, stdin=subprocess.PIPE, env=self._environ, cwd=ROOT)

    def kill(self) -> None:
        """Kill its telemetry."""
        assert self.telemetry is not None
        self.telemetry.kill()
        self.telemetry.communicate()
        self.telemetry, self.is_stopped, self.was_killed = None, False, True

    def hold(self, number: signal.Signals) -> None:
        """Stop its telemetry, or let it go on."""
        assert self.telemetry is not None
        self.telemetry.send_signal(number)
        self.is_stopped = number == signal.SIGSTOP

    def order(self, what: str, count: int) -> None:
        """Have the program send samples."""
        assert self.program.stdin is not None
        self.program.stdin.write(f"{what} {count}\n")
        self.program.stdin.flush()

    def take(self, what: str) -> None:
        """Wait until the program has sent its samples."""
        assert self.program.stdout is not None
        times_us, is_in_hand = json.loads(self.program.stdout.readline())
        self.sent |= {*times_us}
        if is_in_hand:
            (self.in_hand if what == "send" else self.may_lack).update(times_us)

    def send(self, what: str = "send", count: int = 20) -> None:
        """Have the program send samples, and wait until it has."""
        self.order(what, count)
        self.take(what)

    def replace_program(self) -> None:
        """Kill the program, and start another one."""
        self.end_program()
        self.may_lack |= self.in_hand
        self.in_hand.clear()
        self.program = self._start_program()

    def end_program(self) -> None:
        """Kill the program."""
        self.program.kill()
        self.program.communicate()

    def end(self) -> None:
        """Kill all that runs."""
        self.end_program()
        if self.telemetry is not None:
            self.kill()


class Course:
    """A job that is read by everybody, during the ``with`` block."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.story: list[str] = []
        self._published: dict[str, Counter[str]] = {host: Counter() for host in HOSTS}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(StateServer.start(self.folder / "state", job="whole"))
            self.endpoint = server.endpoint
            self._client = stack.enter_context(self.endpoint.connect())
            begin_launch(self._client, self.endpoint, 0)
            self._control = Control(self._client, self.endpoint, 0)
            self._control.write_launch(LaunchRecord(0, tuple(NodeRecord(host, "127.0.0.1", ()) for host in HOSTS), ()))
            stack.enter_context(Listener(self._client, [self.endpoint.key(ROLLUPS)], self._take))
            primary = self.prepare(self.folder / "primary", "node1")
            served = stack.enter_context(server_process(primary, 0))
            self._served = _served(served, self.folder)
            self._asker = NodeAsker(self._client, self.endpoint)
            session = Session(JobEnvironment.current(primary), self.endpoint, self._client)
            self._reader = AnalysisClient()
            self._reader._connection = session, self._asker
            self.nodes = {host: Node(self, host) for host in HOSTS}
            for node in self.nodes.values():
                stack.callback(node.end)
            self._began_ms = int(time.time() * 1000) - 20_000  # a bucket that begins before the range is not in it
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def prepare(self, folder: Path, host: str) -> dict[str, str]:
        """Make a node's private folder, and return the environment of its processes."""
        folder.mkdir(mode=0o700)
        self.endpoint.save(folder / "endpoint.json")
        (folder / "telemetry.yaml").write_text(f"dump_dir: {self.folder / 'dumps'}\n")
        return {ENDPOINT_FILE: str(folder / "endpoint.json"), LAUNCH: "0", NODE: host, TELEMETRY_LEVEL: "1"}

    def _take(self, message: bytes) -> None:
        run, _, _, rows = _parsed(message)
        self._published[run.host][run.name] += int(rows.unpack(COLUMNS)["count"].sum())

    def publish(self) -> None:
        """Let all programs send, and wait until the primary has received something from each node."""
        before = [self._published[host].total() for host in HOSTS]
        for node in self.nodes.values():
            node.send()
        wait_until(lambda: all(map(gt, [self._published[host].total() for host in HOSTS], before)))

    def kill_at_some_moment(self, node: Node) -> None:
        """Kill a node's telemetry, which has something that the primary has not received, and start it anew."""
        moment_s = time.monotonic() + self.random.uniform(0, SPREAD_S)
        wait_until(lambda: time.monotonic() > moment_s)
        node.send()
        node.kill()
        node.start()

    # -- what happens

    def happen(self, node: Node, what: str) -> None:
        """Let one thing happen to a node, and see what everybody reads afterwards."""
        self.story.append(f"{node.host}: {what}")
        count = self.random.randint(1, 40)
        match what:
            case "send" | "fork":
                node.send(what, count)
            case "send, stopped in between":
                node.program.send_signal(signal.SIGSTOP)
                node.order("send", count)
                self.look()
                node.program.send_signal(signal.SIGCONT)
                node.take("send")
            case "another program":
                node.replace_program()
            case "kill":
                node.kill()
            case "stop":
                node.hold(signal.SIGSTOP)
            case "go on":
                node.hold(signal.SIGCONT)
            case "start":
                node.start()
                wait_until(lambda: node.host not in self.get_data(on_the_way=not node.was_killed))
        if what in {"kill", "stop", "another program"} or (what == "start" and node.was_killed):
            self.get_data()  # nothing is on its way, so that there is nothing to wait for
        self.look()
        if not node.is_away:
            node.in_hand.clear()  # it has arrived, or had its turn before the node has samples

    def choices(self, node: Node) -> list[str]:
        """Return what may happen to a node."""
        of_program = ["send", "send", "fork", "send, stopped in between", "another program"]
        if node.telemetry is None:
            return [*of_program, "start", "start"]
        return [*of_program, "kill", "kill", "go on" if node.is_stopped else "stop"]

    # -- who reads

    def look(self) -> None:
        """Read everything in every way; what is on its way from a program to a node is waited for once."""
        wait_until(self._has_arrived, lambda: f"{self.story}: {self._lacks}")
        self._names()
        self._page()

    def get_data(self, *, on_the_way: bool = False) -> set[str]:
        """Return the nodes that are missing from the samples; of the others all samples are there since a time."""
        found = self._reader.get_data([f"m-{host}" for host in HOSTS])
        got: dict[str, set[int]] = {host: set() for host in HOSTS}
        for series in found:
            got[series["tags"]["host"]] |= {round(float(time_s) * SECOND_US) for time_s in series["dps"]}
        self._since_us = {host: round(since_s * SECOND_US) for host, since_s in found.since.items()}
        self._lacks: dict[str, int] = {}
        for host in {*HOSTS} - {*found.missing}:
            assert got[host] <= self.nodes[host].sent | self.nodes[host].may_lack, self.story
            if lacks := self._wanted(host) - got[host]:
                self._lacks[host] = len(lacks)
        assert on_the_way or not self._lacks, (self.story, self._lacks, found.since)
        return {*found.missing}

    def _wanted(self, host: str) -> set[int]:
        """Return which samples a node has to have, after what it says of itself."""
        node = self.nodes[host]
        return {time_us for time_us in node.sent - node.may_lack if time_us > self._since_us[host]}

    def _at_least(self, host: str) -> int:
        """Return how many samples queries and dumps must have: what the node has, and what the primary has received."""
        run = self._asker.ask({"kind": PING}, hosts=[host]).by_host.get(host, {"run": ""})["run"]
        published = self._published[host]
        return len(self._wanted(host)) + published.total() - published[run] if run else 0

    def _has_arrived(self) -> bool:
        """Return whether samples and queries have everything, but for what they say."""
        missing = self.get_data(on_the_way=True)
        for host in {*HOSTS} - missing:
            body = {"start": self._began_ms, "end": _soon_ms(), "queries": [_counts(host)]}
            answer = self._asked(host, "/api/query", body)
            count = sum(sum(each["dps"].values()) for each in answer or ())
            assert count <= len(self.nodes[host].sent), (self.story, "a sample counts twice")
            if answer is not None and count < self._at_least(host):
                self._lacks[host] = self._at_least(host) - int(count)
        return not self._lacks

    def _asked(self, host: str, path: str, body: Any = None) -> Any:
        """Return an answer; None if it says that it is without this node."""
        status, headers, content = self._served.request(path, body)
        if status == 503:
            assert b"no node answered" in content
            return None
        assert status == 200, content
        return None if host in headers.get("x-laggard-missing-nodes", "").split(",") else json.loads(content)

    def _names(self) -> None:
        found = self._reader.get_metrics()
        for host in filter(self._is_known, HOSTS):
            name = f"m-{host}"
            assert name in found or host in found.missing, (self.story, host)
            assert name in (self._asked(host, "/api/suggest?type=metrics&max=100") or [name]), (self.story, host)
            series = self._asked(host, f"/api/search/lookup?m={name}")
            assert series is None or series["totalResults"] > 0, (self.story, host)

    def _is_known(self, host: str) -> bool:
        return host in self._since_us and self._at_least(host) > 0

    def _page(self) -> None:
        span = {"start": self._began_ms, "end": _soon_ms()}
        for host in filter(self._is_known, HOSTS):
            job = self._asked(host, f"/page/job?{urlencode(span)}")
            assert job is None or f"m-{host}" in {each["name"] for each in job["metrics"]}, (self.story, host)
            curve = urlencode({"metric": f"m-{host}", "by": "process", "points": 1000, **span})
            for drawn in self._asked(host, "/page/curves", [curve]) or ():
                values = zip(*(line["values"] for line in drawn["lines"]), strict=True)
                at = {time for time, each in zip(drawn["times"], values, strict=True) if {*each} != {None}}
                assert {time_us // SECOND_US * 1000 for time_us in self._wanted(host)} <= at, (self.story, host)

    def dump(self) -> set[str]:
        """Return the nodes that a dump is said to lack; of the others its replay has all samples."""
        folder = self.folder / "dumps"
        shutil.rmtree(folder, ignore_errors=True)
        dumps = request_dump(self._asker, "", HOSTS, deadline_s=DUMP_WAIT_S)
        missing = {host for host in HOSTS if host in " ".join(dumps.missing)}
        if not dumps.written:
            assert missing == {*HOSTS}
            return missing
        with server_process({**os.environ}, 0, "--dump", str(folder)) as process:
            served = _served(process, folder)
            for host in {*HOSTS} - missing:
                body = {"start": self._began_ms, "end": _soon_ms(), "queries": [_counts(host)]}
                count = sum(sum(each["dps"].values()) for each in served.json("/api/query", body))
                assert self._at_least(host) <= count <= len(self.nodes[host].sent), (self.story, host, count)
        return missing

    def end(self) -> None:
        """Let everybody come back: then nothing may be missing, and nobody began anew without a word."""
        for node in self.nodes.values():
            if node.is_away:
                self.happen(node, "go on" if node.is_stopped else "start")
        wait_until(lambda: not self.get_data())
        wait_until(lambda: not self.dump())
        notices = [text for _, each in self._control.requests("0-0", 0.1) for text in each.body]
        said = {text.partition(":")[0] for text in notices if "begins anew" in text}
        assert said == {host for host, node in self.nodes.items() if node.was_killed}, (self.story, notices)


def _counts(host: str) -> dict[str, Any]:
    return sub_query(f"sum:10s-sum:m-{host}")


def _soon_ms() -> int:
    return int(time.time() * 1000) + 1000


def _served(process: subprocess.Popen[str], folder: Path) -> Served:
    """Return how to ask a server, once it listens."""
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    port = next(int(line.rsplit(":", 1)[1]) for line in lines if line.startswith("telemetry at"))
    return Served(port, "", folder, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(COURSES))
def test_what_is_read_is_all_that_was_sent_or_says_what_is_missing(tmp_path: Path, seed: int) -> None:
    with Course(seed, tmp_path) as course:
        for node in course.nodes.values():
            if course.random.random() < 0.7:
                course.happen(node, "start")
        for number in range(EVENTS):
            node = course.nodes[course.random.choice(HOSTS)]
            course.happen(node, course.random.choice(course.choices(node)))
            if number % 3 == 0:
                course.dump()
        course.end()


def test_a_dump_has_what_telemetry_processes_had_published_that_were_killed_at_twenty_moments(tmp_path: Path) -> None:
    with Course(COURSES, tmp_path) as course:
        for node in course.nodes.values():
            node.start()
        for _ in range(ROUNDS):
            course.publish()
            for node in course.nodes.values():
                course.kill_at_some_moment(node)
        course.end()
