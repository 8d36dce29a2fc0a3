"""Programs that others wrote for OpenTSDB and Prometheus, against the server; each where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from laggard.kvstore.server.process import StateServer
from tests.integration.serving import SECOND_US, Served, serve
from tests.queries import sub_query
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(state_server, tmp_path_factory.mktemp("node1")) as server:
        yield server


def newest(served: Served, metric: str) -> dict[str, float]:
    """Return the newest value of each series of a metric, by the value of its tag ``source``."""
    found = served.json("/api/query", {"start": "5m-ago", "queries": [sub_query(f"none:{metric}")]})
    return {each["tags"].get("source", ""): list(each["dps"].values())[-1] for each in found}


def test_opentsdb_py_sends_over_http(served: Served) -> None:
    opentsdb = pytest.importorskip("opentsdb", reason="opentsdb-py is not installed")
    uri = f"http://laggard:{served.token}@127.0.0.1:{served.port}"
    client = opentsdb.TSDBClient(uri=uri, host_tag=False, static_tags={"source": "http"})
    assert client.is_alive()

    for value in range(120):
        client.send("client.loss", value)
    wait_until(lambda: client.statuses["success"] == 120)  # closed before, it gives up what it would send again
    client.close()
    client.wait()

    assert client.statuses["failed"] == 0
    wait_until(lambda: newest(served, "client.loss").get("http") == 119)


def test_promtool_finds_nothing_wrong_with_the_metrics(served: Served) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("prometheus, which brings promtool, is not installed")
    now_us = round(time.time() * SECOND_US)
    for number, name in enumerate(("power_usage", "loss-per step", "DevicePowerUsage", "network_receive")):
        served.node.store.add(name, {"host": "node1", "rank": "1"}, now_us, 1.5 * number)
    _, _, text = served.request("/metrics")

    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)

    assert b"DevicePowerUsage" not in text
    assert b"DCGM_FI_DEV_POWER_USAGE" in text
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")
