"""AnalysisClient: reads the job's metrics and requests relaunches and dumps, from any process of the job."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

import redis

from laggard.kvstore.client.connection import Session, current_session
from laggard.kvstore.control import Control, nodes_in_use
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.errors import NodeError, NotConnectedError
from laggard.telemetry.nodes.bus import NodeAsker, Replies
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


class SampleSeries(list[DataSeries]):
    """The series of an answer, and the nodes in use that are not in it since they did not answer."""

    missing: tuple[str, ...] = ()
    since: Mapping[str, float] = MappingProxyType({})
    """From which Unix time on each node has all of its samples; 0: it has lost none."""


class MetricNames(set[str]):
    """The names of metrics, and the nodes in use whose metrics are not in it since they did not answer."""

    missing: tuple[str, ...] = ()


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

    def get_metrics(self) -> MetricNames:
        """Return the names of all metrics; the answer's ``missing`` names nodes that did not answer in time."""
        session, nodes = self._connected()
        with _server_of(session):
            hosts = {*nodes.hosts(), *nodes_in_use(session.client, session.endpoint), SERVER_NAME}
            replies = nodes.ask({"kind": "keys", "metric": ""}, hosts=hosts)
        answer = MetricNames(metric for reply in replies.by_host.values() for metric, _ in reply)
        answer.missing = tuple(map(_name, _silent(replies)))
        if answer.missing:
            _log.warning(_lacks(answer.missing, []))
        return answer

    def get_data(
        self,
        metrics: str | Sequence[str],
        tags: str | Sequence[str] | Mapping[str, str] | None = None,
        start_time: float | None = None,
        *,
        whole: bool = False,
    ) -> SampleSeries:
        """Return the samples of some metrics, as one series for each set of tags.

        Nodes in use that do not answer in time are left out: the answer's ``missing`` names them. What a node no longer
        keeps as samples, by age or since its telemetry was started again, is only in the server's answers and in dumps,
        as summaries: the answer's ``since`` says from when on each node has all. Of both a warning is logged.

        Parameters
        ----------
        metrics
            One name or several.
        tags
            Only series that have all of these tags: names, or names with values.
        start_time
            Only samples from this Unix time on, in seconds; ``None``: all that the nodes still have.
        whole
            Raise an error rather than leave nodes, or a part of their time, out.

        Raises
        ------
        NodeError
            If there are too many samples: the message says what to do; with ``whole``, if something is missing.
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
                expected=nodes_in_use(session.client, session.endpoint),
            )
        since = {host: since_us / SECOND_US for host, since_us in found.since_us.items()}
        lacks = _lacks(found.missing, [] if start_time is None else [h for h, s in since.items() if s > start_time])
        if lacks and whole:
            raise NodeError(lacks)
        if lacks:
            _log.warning(lacks)
        answer = SampleSeries(map(_data_series, found.series))
        answer.missing, answer.since = tuple(found.missing), since
        return answer

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
            If a node in use is in no file, since it could not write it or did not answer; the others are.
        """
        session, nodes = self._connected()
        with _server_of(session):
            expected = nodes_in_use(session.client, session.endpoint)
            dumps = request_dump(nodes, job_settings(session.environment).dump_node, expected)
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


def request_dump(
    asker: NodeAsker, dump_node: str, expected: Collection[str] = (), *, deadline_s: float = DUMP_DEADLINE_S
) -> Dumps:
    """Have a job's samples written to files, as :meth:`AnalysisClient.db_dump` does; ``expected`` nodes should be."""
    nodes = [dump_node] if dump_node else sorted({*asker.hosts(), *expected})
    replies = asker.ask({"kind": "dump"}, hosts=[*nodes, SERVER_NAME], deadline_s=deadline_s)
    answers = sorted((host or "server", answer) for host, answer in replies.by_host.items())
    written = [f"{host}:{answer['path']}" for host, answer in answers if "path" in answer]
    failed = [
        f"{host} could not write its dump: {answer['failure']}" for host, answer in answers if "failure" in answer
    ]
    late = [
        f"{_name(host)} did not write its dump in time"
        if host in replies.received
        else f"{host} wrote no dump: its telemetry does not run"
        for host in _silent(replies)
    ]
    partly = [
        f"the dump of {host} lacks {_named(answer['missing'])}: no answer in time"
        for host, answer in answers
        if answer.get("missing")
    ]
    return Dumps(written, failed + partly + late)


def _silent(replies: Replies) -> list[str]:
    """Return who did not answer; a server that does not run has nothing that the nodes do not have."""
    return [host for host in replies.missing if host != SERVER_NAME or host in replies.received]


def _name(host: str) -> str:
    return "the server" if host == SERVER_NAME else host


@contextmanager
def _server_of(session: Session) -> Iterator[None]:
    """Turn the Redis client's errors into ours."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StateUnavailableError(session.endpoint.host, session.endpoint.port, str(error)) from error


def _lacks(missing: Sequence[str], late: Sequence[str]) -> str:
    """Return what is missing from an answer, in a sentence; nothing: it is whole."""
    silent = f"no answer in time from {_named(missing)}" if missing else ""
    short = f"not all samples from {_named(late)}: older ones are kept as summaries only" if late else ""
    return "; ".join(filter(None, (silent, short)))


def _named(hosts: Sequence[str]) -> str:
    left = len(hosts) - MAX_NAMED
    return ", ".join(hosts[:MAX_NAMED]) + (f" and {left} others" if left > 0 else "")


def _data_series(series: TimeSeries) -> DataSeries:
    dps = dict(zip(map(str, (series.times_us / SECOND_US).tolist()), series.values.tolist(), strict=True))
    return DataSeries(metric=series.metric, tags=dict(series.tags), dps=dps)
