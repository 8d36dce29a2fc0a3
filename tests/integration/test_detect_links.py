"""``--detect slow-link`` runs beside any program: the nodes probe their links, and report each round."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

WATCHED = ("--virtual-gpus=1", "--per-node", "--detect=slow-link", "--detect-interval=1")


def test_a_job_without_devices_may_watch_its_links(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--per-node", "--detect=slow-link", "true")
    assert job.finish() == 0, job.everything()
