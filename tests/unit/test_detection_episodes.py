"""Slow episodes of devices and nodes, and what verdicts they lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laggard.detectors.analysis.findings import merged_by_node, rank_of, verdict_of
from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Action, Severity, Verdict

# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_verdict_is_graver_the_more_certain_and_the_slower() -> None:
    def graded(slowdown: float, *, sure: bool, own_past: bool = False) -> tuple[Severity, Action, int]:
        verdict = verdict_of(("n1", "0"), Slow(slowdown, "peers"), sure=sure, own_past=own_past)
        return verdict.severity, verdict.action, rank_of(verdict)

    assert not verdict_of(("n1", "0"), Slow(9.0, "peers"), sure=False).evidence.own_past
    assert graded(9.0, sure=False) == ("suspect", "report", 1)
    assert graded(9.0, sure=False, own_past=True) == ("suspect", "report", 2)
    assert graded(1.05, sure=True) == ("slow", "restart", 4)
    assert graded(1.32, sure=True) == ("slow", "restart", 4)
    assert graded(1.33, sure=True) == ("very slow", "restart", 6)


def device(gpu: int, slowdown: float, *, sure: bool = True, **more: Any) -> Verdict:
    found = Slow(slowdown, "peers", 7, **more)
    return verdict_of(("n1", str(gpu)), found, sure=sure, own_past=more.get("rounds") == 9)


@pytest.mark.parametrize(
    ("slowdowns", "n_devices", "node"),
    [
        ((1.2,), 1, None),  # a node of one device is that device
        ((1.2, 1.2), 3, None),  # one is well
        ((1.2, 1.2), 2, 1.2),
        ((1.04, 1.5), 2, None),  # half of them by less than matters
        ((1.05, 1.5), 2, 1.05),
        ((1.04, 1.3, 1.5), 3, 1.3),
        ((1.5, 1.4, 1.3, 1.2), 4, 1.3),  # of two in the middle the faster one
    ],
)
def test_a_node_all_of_whose_devices_are_slow_is_as_slow_as_half_of_them(
    slowdowns: tuple[float, ...], n_devices: int, node: float | None
) -> None:
    verdicts = [device(gpu, each) for gpu, each in enumerate(slowdowns)]
    other = replace(verdicts[0], host="n2")
    found = merged_by_node([other, *verdicts], {"n1": n_devices, "n2": 8}, 1.05)
    assert found[0] == other
    assert (
        found[1:] == verdicts if node is None else [(each.gpu, each.slowdown) for each in found[1:]] == [(None, node)]
    )


def test_a_nodes_verdict_has_the_episode_and_the_certainty_of_its_worst_device() -> None:
    verdicts = [
        device(0, 1.2, sure=False, rounds=9, jobs=5.0, since_s=70.0),
        device(1, 1.4, rounds=3, jobs=700.0, since_s=90.0),
        device(2, 1.34, sure=False, rounds=1, jobs=6.0),
    ]
    [node] = merged_by_node(verdicts, {"n1": 3}, 1.05)
    assert (node.severity, node.action, node.slowdown) == ("very slow", "restart", 1.34)
    found = node.evidence.found
    assert found == Slow(1.34, "peers", 7, rounds=3, jobs=700.0, since_s=90.0, n_devices=3)
    assert not node.evidence.own_past  # that of the worst
    [suspects] = merged_by_node([device(gpu, 1.01, sure=False) for gpu in (0, 1)], {"n1": 2}, 1.05)
    assert (suspects.severity, suspects.action, suspects.slowdown) == ("suspect", "report", 1.01)
