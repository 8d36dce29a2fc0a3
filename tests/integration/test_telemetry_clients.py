"""Programs that others wrote for OpenTSDB and Prometheus, against the server; each where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.kvstore.server.process import StateServer
from tests.integration.serving import DEADLINE_S, SECOND_US, Served, free_port, serve
from tests.waiting import wait_until

COLLECTD_PLUGINS = Path("/usr/lib/collectd")


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that takes lines on its one port, as OpenTSDB's daemon does."""
    with serve(state_server, tmp_path_factory.mktemp("node1"), port=free_port()) as server:
        yield server


def newest(served: Served, metric: str) -> dict[str, float]:
    """Return the newest value of each series of a metric, by the value of its tag ``source``."""
    found = served.json(f"/api/query/last?timeseries={metric}")
    return {each["tags"].get("source", ""): float(each["value"]) for each in found}


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


def test_opentsdb_py_sends_lines_to_the_same_port(served: Served) -> None:
    opentsdb = pytest.importorskip("opentsdb", reason="opentsdb-py is not installed")
    client = opentsdb.TSDBClient(
        "127.0.0.1", served.port, protocol="TELNET", host_tag=False, static_tags={"source": "lines"}
    )

    for value in range(20):
        client.send("client.loss", value)
    wait_until(lambda: client.statuses["success"] == 20)
    client.close()
    client.wait()

    wait_until(lambda: newest(served, "client.loss").get("lines") == 19)


def test_collectd_sends_what_it_reads(served: Served, tmp_path: Path) -> None:
    collectd = shutil.which("collectd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if collectd is None or not (COLLECTD_PLUGINS / "write_tsdb.so").exists():
        pytest.skip("collectd-core is not installed")
    settings = tmp_path / "collectd.conf"
    settings.write_text(
        f"""
Hostname "node01"
Interval 0.1
BaseDir "{tmp_path}"
PIDFile "{tmp_path}/pid"
TypesDB "/usr/share/collectd/types.db"
LoadPlugin load
LoadPlugin write_tsdb
<Plugin write_tsdb>
  <Node "laggard">
    Host "127.0.0.1"
    Port "{served.port}"
    HostTags "source=collectd job=123"
  </Node>
</Plugin>
"""
    )
    daemon = subprocess.Popen([collectd, "-f", "-C", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: served.json("/api/suggest?type=metrics&q=load"))
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE_S)

    found = served.json("/api/search/lookup?m=load.load.midterm")["results"]

    assert [result["tags"]["job"] for result in found] == ["123"]
    assert found[0]["tags"]["fqdn"] == "node01"


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
