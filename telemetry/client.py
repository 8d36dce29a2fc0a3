"""AnalysisClient: reads the job's metrics, and asks for a relaunch, from any process of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from kvstore.control import Control
from kvstore.series import Sample, Series
from kvstore.session import Session, current_session

__all__ = ["AnalysisClient", "DataSeries"]


class DataSeries(TypedDict):
    """One series of an answer: its metric, its tags, and its values by Unix time."""

    metric: str
    tags: dict[str, str]
    dps: dict[str, float]


class AnalysisClient:
    """Reads what the job's processes have sent."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def connect(self, timeout: float | None = None) -> None:
        """Connect to the job's server, waiting at most ``timeout`` seconds (``None``: 5).

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        redis.ConnectionError
            If the server does not answer.
        """
        session = current_session()
        with session.endpoint.connect(timeout_s=5.0 if timeout is None else timeout) as client:
            client.ping()
        self._session = session

    def get_metrics(self) -> set[str]:
        """Return the names of all metrics."""
        return self._series().metrics()

    def get_data(
        self,
        metrics: str | Sequence[str],
        tags: Mapping[str, str] | None = None,
        start_time: float | None = None,
    ) -> list[DataSeries]:
        """Return the samples of some metrics, a series for each set of tags.

        Parameters
        ----------
        metrics
            One name or several.
        tags
            Only samples that carry all of these.
        start_time
            Only samples from this Unix time on, in seconds.
        """
        names = [metrics] if isinstance(metrics, str) else metrics
        series: dict[tuple[str, tuple[tuple[str, str], ...]], DataSeries] = {}
        for name in names:
            for _, sample in self._series().read(name):
                if _is_wanted(sample, tags or {}, start_time):
                    key = (name, tuple(sorted(sample.tags.items())))
                    found = series.setdefault(key, DataSeries(metric=name, tags=sample.tags, dps={}))
                    found["dps"][str(sample.time_s)] = min(sample.values)
        return list(series.values())

    def reboot(self, exclude_hostnames: str | Sequence[str] | None = None) -> None:
        """Ask for a relaunch without the given hosts (``None``: on the same nodes). Returns before it happens."""
        hosts = [exclude_hostnames] if isinstance(exclude_hostnames, str) else list(exclude_hostnames or [])
        session = self._connected()
        Control(session.client, session.endpoint, session.environment.launch).ask("reboot", hosts)

    def _series(self) -> Series:
        session = self._connected()
        return Series(session.client, session.endpoint, session.environment.launch)

    def _connected(self) -> Session:
        if self._session is None:
            raise RuntimeError("the AnalysisClient is not connected: call connect() first")
        return self._session


def _is_wanted(sample: Sample, tags: Mapping[str, str], start_time: float | None) -> bool:
    recent = start_time is None or sample.time_s >= start_time
    return recent and tags.items() <= sample.tags.items()
