"""AnalysisClient: reads the job's metrics and requests relaunches and dumps, from any process of the job."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

import redis

from laggard.kvstore.client.connection import Session, current_session
from laggard.kvstore.control import Control
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.errors import NodeError, NotConnectedError
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.gathering import gather
from laggard.telemetry.nodes.mailbox import SERVER_NAME
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US
from laggard.telemetry.settings import job_settings

_log = logging.getLogger("laggard.telemetry")

CONNECT_TIMEOUT_S = 5.0
DUMP_DEADLINE_S = 120.0
# Of nodes in a warning, the others are only counted.
MAX_NAMED = 5


class DataSeries(TypedDict):
    """One series of an answer: its metric, its tags, and its values by Unix time in seconds."""

    metric: str
    tags: dict[str, str]
    dps: dict[str, float]


class AnalysisClient:
    """Reads what all processes of the job have sent.

    Raises
    ------
    NotConnectedError
        From every call before `connect`.
    StateUnavailableError
        From every call, if the state server does not answer.
    """

    def __init__(self) -> None:
        self._connection: tuple[Session, NodeAsker] | None = None

    def connect(self, timeout: float | None = None) -> None:
        """Connect to the job's state server, waiting at most ``timeout`` seconds (``None``: 5).

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        StateUnavailableError
            If the server does not answer.
        """
        session = current_session()
        timeout_s = CONNECT_TIMEOUT_S if timeout is None else timeout
        with _server_of(session), session.endpoint.connect(timeout_s=timeout_s) as client:
            client.ping()
        self._connection = session, NodeAsker(session.client, session.endpoint)

    def get_metrics(self) -> set[str]:
        """Return the names of all metrics."""
        session, nodes = self._connected()
        with _server_of(session):
            replies = nodes.ask({"kind": "keys", "metric": ""})
        return {metric for reply in replies.by_host.values() for metric, _ in reply}

    def get_data(
        self,
        metrics: str | Sequence[str],
        tags: str | Sequence[str] | Mapping[str, str] | None = None,
        start_time: float | None = None,
    ) -> list[DataSeries]:
        """Return the samples of some metrics, as one series for each set of tags.

        Nodes that do not answer in time are left out, with a warning in the log.

        Parameters
        ----------
        metrics
            One name or several.
        tags
            Only series that have all of these tags: names, or names with values.
        start_time
            Only samples from this Unix time on, in seconds; ``None``: all that the nodes still have.

        Raises
        ------
        NodeError
            If there are too many samples; the message says what to do.
        """
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        pairs = dict(tags) if isinstance(tags, Mapping) else {}
        keys = [tags] if isinstance(tags, str) else [] if tags is None else list(tags)
        session, nodes = self._connected()
        with _server_of(session):
            found = gather(
                nodes,
                names,
                0 if start_time is None else round(start_time * SECOND_US),
                ALL_TIME_US,
                tags={key: str(value) for key, value in pairs.items()},
                tag_keys=keys,
            )
        if found.missing:
            first, left = found.missing[:MAX_NAMED], len(found.missing) - MAX_NAMED
            more = f" and {left} others" if left > 0 else ""
            _log.warning("no samples from %s%s: no answer in time", ", ".join(first), more)
        return [_data_series(each) for each in found.series]

    def reboot(self, exclude_hostnames: str | Sequence[str] | None = None) -> None:
        """Request a relaunch without the given hosts (``None``: on the same nodes). Returns before it happens."""
        hosts = [exclude_hostnames] if isinstance(exclude_hostnames, str) else list(exclude_hostnames or [])
        session, _ = self._connected()
        Control(session.client, session.endpoint, session.environment.launch).ask("reboot", hosts)

    def db_dump(self) -> list[str]:
        """Have the samples written to files, and return ``host:path`` of each (:mod:`laggard.telemetry.dumps.writing`).

        Each node writes its own, or ``dump_node`` writes one of all, to ``dump_dir``.

        Raises
        ------
        NodeError
            If a node could not write its file or did not answer in time; the others have written theirs.
        """
        session, nodes = self._connected()
        with _server_of(session):
            dumps = request_dump(nodes, job_settings(session.environment).dump_node)
        if dumps.missing:
            raise NodeError("; ".join(dumps.missing))
        return dumps.written

    def _connected(self) -> tuple[Session, NodeAsker]:
        if self._connection is None:
            raise NotConnectedError
        return self._connection


@dataclass(frozen=True, slots=True)
class Dumps:
    """The files that were written, as ``host:path``, and a sentence for each that is missing."""

    written: list[str]
    missing: list[str]


def request_dump(asker: NodeAsker, dump_node: str, *, deadline_s: float = DUMP_DEADLINE_S) -> Dumps:
    """Have a job's samples written to files, as :meth:`AnalysisClient.db_dump` does."""
    nodes = [dump_node] if dump_node else asker.hosts()
    replies = asker.ask({"kind": "dump"}, hosts=[*nodes, SERVER_NAME], deadline_s=deadline_s)
    if replies.received <= len(nodes) and SERVER_NAME in replies.missing:
        replies.missing.remove(SERVER_NAME)  # no server, no rollups
    answers = sorted((host or "server", answer) for host, answer in replies.by_host.items())
    written = [f"{host}:{answer['path']}" for host, answer in answers if "path" in answer]
    failed = [
        f"{host} could not write its dump: {answer['failure']}" for host, answer in answers if "failure" in answer
    ]
    late = [f"{host or 'the server'} did not write its dump in time" for host in replies.missing]
    return Dumps(written, failed + late)


@contextmanager
def _server_of(session: Session) -> Iterator[None]:
    """Turn the Redis client's errors into ours."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StateUnavailableError(session.endpoint.host, session.endpoint.port, str(error)) from error


def _data_series(series: TimeSeries) -> DataSeries:
    dps = dict(zip(map(str, (series.times_us / SECOND_US).tolist()), series.values.tolist(), strict=True))
    return DataSeries(metric=series.metric, tags=dict(series.tags), dps=dps)
