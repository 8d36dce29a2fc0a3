"""A job at one moment: which node does what, who is accused, and how devices compare with their peers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from laggard.collectors.device import DeviceId
from laggard.detectors.evidence import StillSlow
from laggard.detectors.verdict import Evidence, Severity, Verdict
from laggard.resilience.decision.ledger import NodeEvidence
from laggard.resilience.decision.reasons import Fact
from laggard.resilience.record.timeline import Launch, RecordedVerdict, Timeline
from laggard.resilience.views.snapshot import Readings, Snapshot, compose

HOSTS = ("n1", "n2", "n10", "n3")


def said(time_s: float, host: str, gpu: str | None, severity: Severity = "slow") -> RecordedVerdict:
    return RecordedVerdict(time_s, Verdict(host, gpu, 1.5, severity, Evidence(host, gpu, StillSlow(1.5))))


def snapshot(
    *launches: Launch, readings: Readings | None = None, verdicts: tuple[RecordedVerdict, ...] = ()
) -> Snapshot:
    devices = dict.fromkeys(HOSTS, ("0", "1"))
    timeline = Timeline("train-a", "", "", 0.0, 100.0, None, devices, launches, verdicts, ())
    return compose(timeline, readings or Readings(), 200.0, level=3, port=1)


def launch(number: int, nodes: tuple[str, ...], reserve: tuple[str, ...] = (), primary: str = "") -> Launch:
    return Launch(number, nodes, reserve, 10.0 * number, primary=primary)


FOUR = launch(0, ("n1", "n2", "n10"), ("n3",), "n1")


@pytest.mark.parametrize(
    ("launches", "roles"),
    [
        ((), ["n1 waiting", "n2 waiting", "n3 waiting", "n10 waiting"]),
        ((FOUR,), ["n1 primary", "n2 in use", "n10 in use", "n3 reserve"]),
        ((launch(0, ("n1", "n2", "n10"), ("n3",)),), ["n1 primary", "n2 in use", "n10 in use", "n3 reserve"]),
        ((FOUR, launch(1, ("n1", "n3", "n10"), (), "n1")), ["n2 excluded", "n1 primary", "n3 in use", "n10 in use"]),
        ((FOUR, launch(1, ("n2", "n10"), ("n3",), "n1")), ["n1 head-only", "n2 in use", "n10 in use", "n3 reserve"]),
    ],
)
def test_nodes_have_the_roles_of_the_newest_launch_and_those_that_are_out_come_first(
    launches: tuple[Launch, ...], roles: list[str]
) -> None:
    found = snapshot(*launches)
    assert [f"{node.host} {node.role}" for node in found.nodes] == roles
    assert [(device.host, device.gpu) for device in found.devices] == [
        (node.host, gpu) for node in found.nodes for gpu in "01"
    ]
    assert found.n_nodes("in use") == sum(each.endswith("in use") for each in roles)


def test_the_newest_verdict_on_a_device_or_on_its_node_counts_until_it_is_well_again() -> None:
    verdicts = (
        said(1, "n1", "0"),
        said(2, "n2", None),
        said(3, "n10", "0"),
        said(4, "n10", "1"),
        said(5, "n1", "0", "very slow"),
        said(6, "n10", None, "well again"),
        said(7, "n3", "1"),
        said(8, "n3", "1", "well again"),
    )
    found = snapshot(FOUR, verdicts=verdicts)
    assert {
        (device.host, device.gpu): (device.verdict.time_s, device.verdict.of.severity)
        for device in found.devices
        if device.verdict is not None
    } == {("n1", "0"): (5, "very slow"), ("n2", "0"): (2, "slow"), ("n2", "1"): (2, "slow")}
    assert {node.host: node.verdicts for node in found.nodes} == {"n1": 2, "n2": 1, "n10": 2, "n3": 1}


def test_a_device_is_compared_with_those_of_its_model_in_use_by_its_newest_probe() -> None:
    probes: dict[DeviceId, list[float]] = {
        ("n1", "0"): [9.0, 1.0],
        ("n1", "1"): [1.0],
        ("n2", "0"): [3.0],
        ("n2", "1"): [1.0, math.nan],  # the newest one failed
        ("n10", "0"): [7.0],  # of another model
        ("n10", "1"): [],
        ("n3", "0"): [8.0],  # in reserve
    }
    models = dict.fromkeys(probes, "H100") | {("n10", "0"): "T4"}
    found = snapshot(FOUR, readings=Readings(probes=probes, models=models))
    by_name = {(device.host, device.gpu): device for device in found.devices}
    assert {name: each.peer_ratio for name, each in by_name.items() if each.peer_ratio is not None} == {
        ("n1", "0"): 1.0,
        ("n1", "1"): 1.0,
        ("n2", "0"): 3.0,
    }
    assert (by_name["n3", "0"].probe_s, by_name["n2", "1"].probe_s, by_name["n10", "1"].probe_s) == (8.0, None, None)
    assert by_name["n1", "0"].probe_history_s == (9.0, 1.0)
    nothing = snapshot(FOUR, readings=Readings(probes={device: [0.0] for device in probes}))
    assert all(device.peer_ratio is None for device in nothing.devices)


def test_a_programs_own_metric_has_its_lowest_mean_and_highest_value() -> None:
    found = snapshot(FOUR, readings=Readings(metrics={"loss": [4.0, 1.0, 1.0], "none": [], "acc": [0.5]}))
    assert [(each.name, each.series, each.low, each.mean, each.high) for each in found.metrics] == [
        ("acc", 1, 0.5, 0.5, 0.5),
        ("loss", 3, 1.0, 2.0, 4.0),
    ]


@pytest.mark.parametrize(("level", "port"), [(0, None), (1, 4242)])
def test_without_telemetry_there_is_no_port(level: int, port: int | None) -> None:
    timeline = snapshot(FOUR).timeline
    found = compose(timeline, Readings(), 200.0, level=level, port=4242).to_json()
    assert found["telemetry"] == {"level": level, "port": port}
    assert found["effective_time"]["total_s"] == 200.0


def test_a_node_shows_the_evidence_of_the_ledger_that_was_told_last() -> None:
    first, second = (NodeEvidence("n2", value, 3, 2) for value in (2.5, 31.0))
    found = snapshot(replace(FOUR, why=(first,)), replace(launch(1, ("n1", "n2")), why=(Fact("hangs"), second)))
    assert {node.host: node.evidence for node in found.nodes if node.evidence} == {"n2": 31.0}
