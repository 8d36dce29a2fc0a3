"""NVIDIA devices read through the real binding from a test driver library, and the node agent on top."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, VirtualDevice
from laggard.collectors.metrics.gpu import VirtualReader
from laggard.kvstore.client.environment import ENDPOINT_FILE, NODE, TELEMETRY_LEVEL
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.events import EventLog
from laggard.telemetry.nodes.bus import NodeAsker
from tests.integration.fake_driver import answer_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0

READ_ALL = """
import json, sys, threading
from laggard.collectors.metrics import nvml
xids, seen = [], threading.Event()

def tell(gpu, number):
    xids.append([gpu, number])
    seen.set()

nvml._GPM_MIN_INTERVAL_S = 0
readers = nvml.nvml_readers(json.loads(sys.argv[1]), tell)
found = {}
for reader in readers:
    try:
        for _ in range(2):
            found[reader.gpu] = {r.metric: r.value for r in reader.read()}
        found[reader.gpu] |= {f"{r.metric} {r.tags['pid']}": r.value for r in reader.processes()}
    except RuntimeError as error:
        found[reader.gpu] = str(error)
if sys.argv[2] == "xid":
    seen.wait(20)
print(json.dumps([found, xids]))
"""


def read_devices(library: Path, names: list[str] | None = None, wait: str = "", **settings: str) -> tuple[Any, Any]:
    found, xids = answer_of(library, READ_ALL, json.dumps(names), wait, **settings)
    return found, xids


def test_every_field_that_a_device_has_is_read_and_no_other(fake_nvml: Path) -> None:
    found, _ = read_devices(fake_nvml)

    assert found["1"] == {
        "DeviceUtilization": 51,
        "DeviceMemoryBusy": 20,
        "DeviceMemoryUsed": 20 << 30,
        "DeviceMemoryUtilization": 25.0,
        "DevicePowerUsage": 300.501,
        "DeviceTemperature": 60,
        "DeviceSmClock": 1980,
        "DeviceMemoryClock": 2619,
        "DeviceClockEventReasons": 4,
        "DeviceEnergy": 5.0,
        "DeviceMemoryTemperature": 70,
        "DeviceNvlinkTransmit": 3072,
        "DeviceXids": 0,
        "ProcessDeviceMemory 4321": 1 << 20,
    }


def test_an_old_driver_means_fewer_fields(fake_nvml: Path) -> None:
    found, _ = read_devices(fake_nvml, FAKE_NVML_OLD="1")

    assert found["0"]["DeviceUtilization"] == 50
    assert not {"DeviceClockEventReasons", "DeviceEnergy", "DeviceMemoryTemperature"} & set(found["0"])


def test_a_device_with_gpm_reports_how_busy_its_units_are(fake_nvml: Path) -> None:
    found, _ = read_devices(fake_nvml, FAKE_NVML_GPM="1")

    # one sample lies between the two, and the number of the metric is added
    assert found["0"]["DeviceSmActive"] == 102
    assert found["0"]["DeviceTensorActive"] == 105
    assert "DeviceDramActive" not in found["0"]
    assert "DeviceSmActive" not in found["1"]


def test_a_lost_device_says_so_and_the_other_is_read(fake_nvml: Path) -> None:
    found, _ = read_devices(fake_nvml, FAKE_NVML_LOST="0")

    assert "lost" in found["0"]
    assert found["1"]["DeviceUtilization"] == 51


def test_an_xid_is_reported_with_its_device(fake_nvml: Path) -> None:
    _, xids = read_devices(fake_nvml, wait="xid", FAKE_NVML_XID="79")

    assert xids == [["1", 79]]


def test_devices_are_found_by_number_and_by_uuid_under_the_names_that_cuda_uses(fake_nvml: Path) -> None:
    found, _ = read_devices(fake_nvml, ["GPU-one", "0", "GPU-unknown"])

    assert {name: values["DeviceUtilization"] for name, values in found.items()} == {"GPU-one": 51, "0": 50}


def test_without_a_driver_there_are_no_devices(tmp_path: Path) -> None:
    assert read_devices(tmp_path) == ({}, [])


@pytest.fixture
def run_agent(state_server: StateServer, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    state_server.endpoint.save(tmp_path / "endpoint.json")
    agents = []

    def run(node: str, level: int, **settings: str) -> subprocess.Popen[bytes]:
        variables = {
            ENDPOINT_FILE: str(tmp_path / "endpoint.json"),
            NODE: node,
            TELEMETRY_LEVEL: str(level),
            **settings,
        }
        agents.append(
            subprocess.Popen(
                [sys.executable, "-m", "laggard.collectors.metrics.process"],
                stdin=subprocess.PIPE,
                env=variables,
                cwd=ROOT,
            )
        )
        return agents[-1]

    yield run
    for agent in agents:
        agent.kill()
        agent.communicate()


class Node:
    def __init__(self, server: StateServer, name: str) -> None:
        self._asker = NodeAsker(server.endpoint.connect(), server.endpoint)
        self._name = name

    def newest(self) -> dict[tuple[str, str], float]:
        replies = self._asker.ask({"kind": "newest"}, hosts=[self._name])
        found = replies.by_host.get(self._name, [])
        return {(each["metric"], each["tags"].get("gpu", "")): each["value"] for each in found}


@pytest.mark.parametrize(
    ("level", "there", "not_there"),
    [
        (1, set(), {("load_average", "")}),
        (2, {("load_average", ""), ("used_RAM", ""), ("cpu_percent", "")}, {("DeviceUtilization", "0")}),
        (3, {("load_average", ""), ("DeviceUtilization", "0"), ("DevicePowerUsage", "1")}, {("db_size", "")}),
        (4, {("DeviceUtilization", "1"), ("db_size", ""), ("collector_missed", "")}, set()),
    ],
)
def test_the_agent_reads_the_metrics_of_its_level(
    state_server: StateServer,
    tmp_path: Path,
    run_agent: Callable[..., subprocess.Popen[bytes]],
    level: int,
    there: set[tuple[str, str]],
    not_there: set[tuple[str, str]],
) -> None:
    name = f"level{level}"
    agent = run_agent(name, level, **{VIRTUAL_DEVICES: "2", VIRTUAL_DEVICE_DIR: str(tmp_path)})
    node = Node(state_server, name)
    asker = NodeAsker(state_server.endpoint.connect(), state_server.endpoint)
    wait_until(lambda: name in asker.hosts())

    wait_until(lambda: there <= set(node.newest()))

    assert not not_there & set(node.newest())
    assert agent.stdin is not None
    agent.stdin.close()
    assert agent.wait(DEADLINE_S) == 0


def test_the_agent_ends_at_sigterm(
    state_server: StateServer, run_agent: Callable[..., subprocess.Popen[bytes]]
) -> None:
    agent = run_agent("ending", 2)
    asker = NodeAsker(state_server.endpoint.connect(), state_server.endpoint)
    wait_until(lambda: "ending" in asker.hosts())

    agent.send_signal(signal.SIGTERM)

    assert agent.wait(DEADLINE_S) == 0
    assert "ending" not in asker.hosts()


def test_a_device_that_stalls_delays_no_other_and_is_reported(
    state_server: StateServer, fake_nvml: Path, run_agent: Callable[..., subprocess.Popen[bytes]]
) -> None:
    agent = run_agent("stalling", 3, LD_LIBRARY_PATH=str(fake_nvml), FAKE_NVML_STALL="2", FAKE_NVML_XID="48")
    node = Node(state_server, "stalling")
    events = EventLog(state_server.endpoint.connect(), state_server.endpoint)

    def events_of(kind: str) -> list[str]:
        return [each.text for each in events.between(0, 2**60) if each.kind == kind and each.host == "stalling"]

    wait_until(lambda: events_of("stall"))

    assert events_of("stall") == ["gpu 2 has not answered for more than 5 s"]
    assert events_of("xid") == ["XID 48 on stalling gpu 1"]
    newest = node.newest()
    assert newest["DeviceUtilization", "0"] == 50
    assert newest["DeviceUtilization", "1"] == 51
    assert ("DeviceUtilization", "2") not in newest
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(DEADLINE_S) == 0, "a hanging driver must not keep the agent"


def test_a_virtual_device_is_as_busy_as_its_kernels_were(tmp_path: Path) -> None:

    now_s = [0.0]
    reader = VirtualReader("0", tmp_path, lambda: now_s[0])
    device = VirtualDevice("0", tmp_path)
    _, busy_s = device.timed(lambda: sum(range(2_000_000)))
    now_s[0] = 4 * busy_s

    found = {reading.metric: reading.value for reading in reader.read()}

    assert found["DeviceUtilization"] == pytest.approx(25, abs=0.1)
    assert found["DevicePowerUsage"] == pytest.approx(120, abs=1)
