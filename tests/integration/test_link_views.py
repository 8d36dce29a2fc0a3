"""The reports of links in a running job's state server become the matrix of the report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.collectors.links.collector import LINK_TIME
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.server.process import StateServer
from laggard.resilience.record.error_log import ErrorLog
from laggard.resilience.record.journal import Journal
from laggard.resilience.record.newest_links import LinkLog
from laggard.resilience.record.progress_log import ProgressLog
from laggard.resilience.record.recorder import Recorder
from laggard.resilience.report.inputs import read_inputs
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.link_matrix import SEND_TIME
from tests.made_up_job import running_job, write_record
from tests.unit.test_newest_links import sample
from tests.waiting import wait_until


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[StateServer]:
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as folder:
        monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", folder)
        with running_job(Path(folder)) as server:
            yield server


def report_links(server: StateServer) -> None:
    with server.endpoint.connect() as client:
        for each in (
            sample("node1", "node2", 0.5, launch=0),
            sample("node1", "node3", 0.03, launch=1, leaf="leaf1"),
            sample("node3", "node1", 0.04, launch=1),
        ):
            Series(client, server.endpoint, 1, each.tags["host"]).add([each])


def test_the_record_keeps_readings_of_links_instead_of_the_nodes_reports(
    job: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[Sample]()
    add = LinkLog.add

    def seen(log: LinkLog, found: Sample) -> None:
        add(log, found)
        taken.append(found)

    monkeypatch.setattr(LinkLog, "add", seen)
    record = write_record(tmp_path / "record", samples=False)
    journal = Journal(None)
    with Recorder(job.endpoint, journal, ProgressLog(journal.write), ErrorLog(), record, 1):
        report_links(job)
        wait_until(lambda: len(taken) == 3)

    keys = read_dump([record]).series_keys()
    assert (SEND_TIME, (("host", "node3"), ("peer", "node1"))) in keys
    assert not [key for key in keys if key[0] == LINK_TIME or "report" in dict(key[1])]
    assert read_inputs(record).probes == (), "no chart takes the reports for probes of a device"
