"""Which nodes of the reserve are slow, from one reading per device."""

from __future__ import annotations

from pathlib import Path

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probes import Probe, gemm_probe
from laggard.kvstore.series.streams import Sample
from laggard.resilience.agent.reserve_probe import _sample
from laggard.resilience.controller.reserve import slow_in_reserve
from tests.fake_cupy.machine import CUDARuntimeError


def reading(host: str, gpu: str, seconds: float, model: str = "H100") -> Sample:
    repeats = (seconds, seconds * 1.002, seconds * 1.004)
    return Sample("probe", 0.0, repeats, {"host": host, "gpu": gpu, "model": model})


def node(host: str, *seconds: float, model: str = "H100") -> list[Sample]:
    return [reading(host, str(gpu), value, model) for gpu, value in enumerate(seconds)]


def accused(idle: list[Sample], busy: list[Sample]) -> set[str]:
    return {verdict.host for verdict in slow_in_reserve(idle, busy)}


def test_a_slow_device_makes_its_node_slow() -> None:
    assert accused([*node("n3", 1, 1), *node("n4", 1.001, 1.3)], []) == {"n4"}


def test_healthy_nodes_are_not_accused() -> None:
    assert accused([*node("n3", 1, 1.01), *node("n4", 1.001, 0.99)], node("n1", 1, 1.02)) == set()


def test_a_node_whose_devices_are_all_slow_is_found_by_comparison_with_active_ones() -> None:
    busy = [*node("n1", 1, 1.01, 1, 1), *node("n2", 1, 1, 1.01, 1)]
    assert accused(node("n3", 1.2, 1.2), busy) == {"n3"}


def test_active_devices_that_the_program_slows_down_neither_hide_a_slow_one_nor_are_accused() -> None:
    idle = [*node("n3", 1, 1), *node("n4", 1.3, 1)]
    assert accused(idle, [*node("n1", 2.5, 2), *node("n2", 2, 2.2)]) == {"n4"}


def test_only_devices_of_one_model_are_compared() -> None:
    idle = [*node("n3", 1, 1, 1, 1), *node("n4", 1.3, 1.3, 1.3, 1.3, model="A100")]
    assert accused(idle, []) == set()


def test_virtual_devices_differ_more_before_they_count_as_slow() -> None:
    assert accused(node("n3", 1, 1, 1, 1.3, model="virtual"), []) == set()
    assert accused(node("n3", 1, 1, 1, 2, model="virtual"), []) == {"n3"}


def test_a_device_with_wrong_results_makes_its_node_unfit_however_fast_it_is() -> None:
    right, wrong = node("n3", 1, 1), node("n4", 1, 1)
    wrong[1].tags["wrong"] = "wrong results of the probe gemm_fp32: 3"
    [verdict] = slow_in_reserve([*right, *wrong], [])
    assert (verdict.host, verdict.gpu, verdict.severity) == ("n4", "1", "faulty")


def lost() -> Probe:
    raise CUDARuntimeError(46)


def without_library() -> Probe:
    raise RuntimeError("CuPy failed to load libnvrtc.so.12")


def test_a_device_that_runs_nothing_makes_its_node_unfit(tmp_path: Path) -> None:
    good = gemm_probe(VirtualDevice("0", tmp_path, "n3"))
    samples = [_sample("n3", "0", lambda: good), _sample("n3", "1", lost), _sample("n4", "0", lambda: good)]
    verdicts = {(verdict.host, verdict.gpu): verdict for verdict in slow_in_reserve(samples, [])}
    evidence = "n3 gpu 1: it cannot run a test kernel: cudaErrorDevicesUnavailable: "
    assert str(verdicts["n3", "1"].evidence).startswith(evidence)  # this machine's other work may make another one slow


def test_a_library_that_is_missing_makes_no_node_unfit() -> None:
    sample = _sample("n3", "0", without_library)
    assert sample.tags["error"] == "RuntimeError: CuPy failed to load libnvrtc.so.12"
    assert slow_in_reserve([sample, *node("n4", 1, 1)], []) == []


def test_without_readings_no_node_is_accused() -> None:
    assert accused([], node("n1", 1, 1)) == set()
