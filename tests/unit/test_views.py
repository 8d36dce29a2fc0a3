"""What `laggard status` shows, and what `laggard top` shows too: roles, peers, order, JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from rich.console import Console

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.command.views import print_status
from laggard.resilience.errors import UsageError
from laggard.resilience.record.entries import Told
from laggard.resilience.record.journal import Entry
from laggard.resilience.record.running_jobs import RunningJob, choose
from laggard.resilience.record.timeline import timeline_of_entries
from laggard.resilience.views.snapshot import Readings, Snapshot, compose
from laggard.resilience.views.tables import sorted_devices
from laggard.telemetry.course import JobBegan, LaunchBegan
from tests.made_up_job import T0, entries

MEASURED = MappingProxyType(
    {"DeviceUtilization": 90.0, "DevicePowerUsage": 300.0, "DeviceSmClock": 1700.0, "DeviceMemoryUtilization": 50.0}
)


def snapshot_of(n_nodes: int = 3, n_gpus: int = 2, *, level: int = 3, hostile: str = "") -> Snapshot:
    told = [*entries(n_nodes, n_gpus, name=f"train{hostile}", ended=False)]
    if hostile:
        told.append(Entry(T0 + 399, Told("notice", hostile)))
    timeline = timeline_of_entries([Entry.from_json(entry.to_json()) for entry in told])
    devices = [(f"node{node + 1}", str(gpu)) for node in range(n_nodes) for gpu in range(n_gpus)]
    readings = Readings(
        devices=dict.fromkeys(devices, MEASURED),
        nodes={host: {"load_average": 1.0} for host, _ in devices},
        probes={device: [0.01, 0.012 if device == ("node3", "1") else 0.01] for device in devices},
        metrics={f"loss{hostile}": [1.0, 3.0]},
        models={device: f"H100{hostile}" for device in devices if hostile},
    )
    return compose(timeline, readings if level else replace(readings, devices={}), T0 + 400, level=level, port=4242)


def test_each_node_has_its_role_and_each_device_its_peers() -> None:
    snapshot = snapshot_of()
    assert {node.host: node.role for node in snapshot.nodes} == {
        "node1": "primary",
        "node2": "excluded",
        "node3": "in use",
    }
    ratios = {device.name: device.peer_ratio for device in snapshot.devices}
    assert ratios["node3 gpu 1"] == pytest.approx(1.2)
    assert ratios["node1 gpu 0"] == 1
    assert ratios["node2 gpu 0"] is None  # not in use, so not a peer of any device


def test_a_device_that_is_well_again_is_not_shown_as_slow() -> None:
    before = snapshot_of()
    accused = {(device.host, device.gpu) for device in before.devices if device.verdict is not None}
    last = before.timeline.verdicts[-1]
    well = [
        replace(last, of=replace(last.of, host=host, gpu=gpu, severity="well again")) for host, gpu in sorted(accused)
    ]
    timeline = replace(before.timeline, verdicts=(*before.timeline.verdicts, *well))
    after = compose(timeline, Readings(), T0 + 400, level=3, port=4242)
    assert accused
    assert [device.verdict for device in after.devices if device.verdict is not None] == []


def test_before_the_first_launch_every_node_waits() -> None:
    timeline = timeline_of_entries([next(entries())])
    snapshot = compose(timeline, Readings(), T0 + 1, level=0, port=0)
    assert {node.role for node in snapshot.nodes} == {"waiting"}


def test_the_worst_come_first_and_what_was_not_measured_last() -> None:
    snapshot = snapshot_of()
    assert [device.name for device in sorted_devices(snapshot.devices, "worst")][:1] == ["node3 gpu 1"]
    unread = replace(snapshot.devices[0], readings={}, probe_s=None)
    for sort in ("utilisation", "power", "temperature", "clock", "probe"):
        assert sorted_devices([unread, *snapshot.devices[1:]], sort)[-1].readings.get(sort) is None
    assert sorted_devices([unread, *snapshot.devices[1:]], "power")[-1] == unread


def test_json_keeps_its_keys_and_says_null_for_unknown() -> None:
    found = json.loads(json.dumps(snapshot_of().to_json(), allow_nan=False))
    assert found["format"] == 1
    assert found["launches"][1]["ended_s"] is None
    assert found["launches"][0]["left_out"] == ["node2"]
    assert found["verdicts"][0]["host"] == "node2"
    assert found["nodes"][0] == {
        "host": "node2",
        "role": "left out",
        "devices": 2,
        "readings": {"load_average": 1.0},
    } | {"findings": 1, "evidence": 0.0}
    assert found["devices"][0]["finding"]["slowdown"] == 1.5
    assert found["devices"][-1]["against_peers"] == pytest.approx(1.2)
    assert {"role": "left out"}.items() <= found["devices"][0].items()
    assert found["devices"][0]["readings"]["power_w"] == 300


def test_no_name_in_the_status_steers_the_terminal_or_vanishes() -> None:
    hostile = "\x1b[31m$\\frac{<script>\x9b2J\r\x1b]0;title\x07[bold]"
    snapshot = snapshot_of(hostile=hostile)
    job = next(entries()).record
    assert isinstance(job, JobBegan)
    hosts = tuple(f"{node.hostname}{hostile}" for node in job.nodes)
    nodes = tuple(replace(node, hostname=host) for node, host in zip(job.nodes, hosts, strict=True))
    told = [Entry(T0, replace(job, nodes=nodes)), Entry(T0, LaunchBegan(0, hosts, (), hosts[0]))]
    timeline = timeline_of_entries([Entry.from_json(entry.to_json()) for entry in told])
    of_nodes = compose(timeline, Readings(metrics={f"loss{hostile}": [1.0]}), T0 + 400, level=3, port=4242)
    for shown in (snapshot, of_nodes):
        console = Console(file=io.StringIO(), width=200, color_system=None, legacy_windows=False, highlight=False)
        with console.capture() as capture:
            print_status(shown, console, None)
        text = capture.get()
        assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
        assert re.search(r"loss.*\$\\frac\{<script>.*\[bold\]", text)
    assert re.search(r"node1 .*\$\\frac\{<script>.*\[bold\]", text)


def job(name: str, job_id: str) -> RunningJob:
    return RunningJob(name, job_id, Path("/nowhere"), Endpoint("127.0.0.1", 1, name, "secret"))


def test_a_job_is_chosen_by_name_or_id_or_because_it_is_the_only_one() -> None:
    one, other, third = job("train", "a1"), job("train", "b2"), job("eval", "c3")
    assert choose([one], None) == one
    assert choose([one, other, third], "eval") == third
    assert choose([one, other, third], "b2") == other
    assert choose([one, other, third], "train-a1") == one


@pytest.mark.parametrize(
    ("jobs", "wanted", "message"),
    [
        ([], None, "no job of yours is running on this machine"),
        ([job("train", "a1"), job("eval", "c3")], None, "2 jobs are running: name one of train-a1, eval-c3"),
        ([job("train", "a1"), job("train", "b2"), job("eval", "c3")], "train", "name one of train-a1, train-b2"),
        ([job("train", "a1")], "eval", "no job 'eval' is running on this machine; running: train-a1"),
    ],
)
def test_a_choice_that_cannot_be_made_says_what_there_is(jobs: list[RunningJob], wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(jobs, wanted)
