"""What the server knows of the job, from what State says of its launches and from how the nodes answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from laggard.kvstore.client.connection import Endpoint, Session
from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.client.fence import launch_key
from laggard.kvstore.control import LaunchRecord, NodeRecord
from laggard.records import plain
from laggard.telemetry.course import JobBegan
from laggard.telemetry.events import JOURNAL, STREAM, Event, EventLog
from laggard.telemetry.nodes.bus import Replies
from laggard.telemetry.nodes.watch import NodeWatch
from laggard.telemetry.server.job import FollowedJob
from tests.waiting import wait_until

ENDPOINT = Endpoint("127.0.0.1", 6379, "job", "password")
BEGAN = {"is": "JobBegan", "time_s": 0.0} | plain(JobBegan("train", "1", (), (), level=1, port=1))


class Redis:
    """A client of a state server: its keys, and its streams."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.streams: dict[str, list[tuple[bytes, dict[bytes, bytes]]]] = {}
        self.replies: list[Any] = []

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def register_script(self, text: str) -> str:
        return text

    def pipeline(self, **_: bool) -> Self:
        self.replies = []
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def xrange(self, key: str, after: str, **_: int) -> None:
        number = 0 if after == "-" else int(after.strip("(").partition("-")[0])
        self.replies.append(self.streams.get(key, [])[number:])

    def execute(self) -> list[Any]:
        return self.replies

    def begin(self, launch: int, *nodes: str, reserve: tuple[str, ...] = (), is_written: bool = True) -> None:
        """Begin a launch on some nodes with a device each."""
        self.values[launch_key(ENDPOINT)] = str(launch).encode()
        used, spare = (tuple(NodeRecord(name, "", ("0",)) for name in names) for names in (nodes, reserve))
        if is_written:
            record = LaunchRecord(launch, used, spare)
            self.values[ENDPOINT.key("launch", str(launch))] = json.dumps(plain(record)).encode()

    def tell(self, event: Event) -> None:
        entries = self.streams.setdefault(ENDPOINT.key(STREAM), [])
        entries.append((f"{len(entries) + 1}-0".encode(), {b"event": json.dumps(plain(event)).encode()}))


class Asker:
    """Nodes of which one answers and one does not; a third is not even known."""

    def hosts(self) -> list[str]:
        return ["up", "down"]

    def ask(self, _: dict[str, Any], **__: object) -> Replies:
        return Replies({"up": {"clock_s": time.time(), "dropped": 0}}, took_s={"up": 0.01})


@contextmanager
def watched() -> Iterator[NodeWatch]:
    with NodeWatch(Asker(), list) as watch:  # type: ignore[arg-type]
        wait_until(watch.health)
        yield watch


def followed(client: Redis) -> FollowedJob:
    session = Session(JobEnvironment(Path("endpoint"), 0, "up"), ENDPOINT, client)  # type: ignore[arg-type]
    return FollowedJob(session, EventLog(client, ENDPOINT))  # type: ignore[arg-type]


def test_the_nodes_are_those_of_the_newest_launch_whose_record_is_written() -> None:
    client = Redis()
    job, seen = followed(client), []
    job.update()
    for launch, nodes, is_written in (
        (0, "ab", False),
        (0, "ab", True),
        (0, "x", True),  # a record is read once
        (1, "c", False),
        (1, "c", True),
    ):
        client.begin(launch, *nodes, is_written=is_written)
        job.update()
        seen.append(sorted(job.nodes()))
    assert seen == [[], ["a", "b"], ["a", "b"], ["a", "b"], ["c"]]


def test_devices_are_those_of_all_launches_and_their_reserves() -> None:
    client = Redis()
    job = followed(client)
    for launch, (node, spare) in enumerate((("a", "b"), ("b", "c"))):
        client.begin(launch, node, reserve=(spare,))
        job.update()
    with watched() as watch:
        assert job.reach(watch).devices == {("a", "0"), ("b", "0"), ("c", "0")}


@pytest.mark.parametrize(
    ("nodes", "missing", "status"),
    [(["up"], [], "ok"), (["up", "down"], ["down"], "degraded"), (["up", "never"], ["never"], "degraded")],
)
def test_a_node_of_the_launch_is_missing_if_it_does_not_answer_or_is_not_known(
    nodes: list[str], missing: list[str], status: str
) -> None:
    client = Redis()
    client.begin(3, *nodes)
    job = followed(client)
    job.update()
    with watched() as watch:
        health = job.health(watch)
        assert (health["status"], health["missing"], health["launch"]) == (status, missing, 3)
        assert {host: each["up"] for host, each in health["nodes"].items()} == {"up": True, "down": False}
        assert (job.reach(watch).missing, job.reach(watch).nodes) == (missing, set(nodes))


def test_it_reaches_back_to_the_first_event_and_has_the_nodes_of_all() -> None:
    client = Redis()
    job = followed(client)
    with watched() as watch:
        began_us = job.reach(watch).began_us
        client.tell(Event(began_us + 1, "notice"))
        assert job.reach(watch).began_us == began_us, "when the server began"
        client.begin(1, "b")
        job.update()
        client.tell(Event(0, "launch", nodes=("a",)))  # of a machine whose clock was not set
        reach = job.reach(watch)
        assert (reach.name, reach.began_us, reach.nodes) == ("a job", 0, {"b"})
        assert job.nodes_ever() == {"a", "b"}
        client.streams[ENDPOINT.key(JOURNAL)] = [(b"1-0", {b"entry": json.dumps(BEGAN).encode()})]
        assert job.reach(watch).name == "train"
