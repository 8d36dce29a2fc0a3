"""What one check says about a device: compared with its class, with its own past, and from what it computed."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.collectors.causes import Cause
from laggard.collectors.device_check import DeviceCheck
from laggard.detectors.judging.diagnosis import CHECKS_TO_JUDGE, REMEMBERED_CHECKS, Past, diagnose, remembered

GPU = "NVIDIA H100 80GB HBM3, 79 GiB, 700 W"


def check(gpu: int, slowdown: Mapping[str, float] | None = None, model: str = GPU, trouble: str = "") -> DeviceCheck:
    slower = slowdown or {}
    seconds = {
        probe: [slower.get(probe, 1.0) * base * (1 + 0.002 * ((gpu + repeat) % 3)) for repeat in range(5)]
        for probe, base in {"clock": 5e-4, "gemm_fp32": 1e-3, "triad": 8e-4}.items()
    }
    return DeviceCheck(str(gpu), model, f"GPU-{gpu}", {} if trouble else seconds, trouble=trouble)


def node(*checks: DeviceCheck) -> dict[tuple[str, str], DeviceCheck]:
    return {("node1", found.gpu): found for found in checks}


def past_of(earlier: int, factor: float = 1.0) -> Past:
    return {f"GPU-{gpu}": {"clock": [5e-4], "triad": [8e-4 * factor] * earlier} for gpu in range(8)}


def test_alike_devices_are_ok() -> None:
    diagnoses = diagnose(node(*map(check, range(8))), {})

    assert {diagnosis.condition for diagnosis in diagnoses.values()} == {"ok"}


def test_a_device_slower_than_its_peers_is_slow_and_its_worst_probe_is_named() -> None:
    devices = node(*map(check, range(7)), check(7, {"triad": 1.4, "gemm_fp32": 1.1}))

    diagnoses = diagnose(devices, {})

    found = diagnoses.pop(("node1", "7"))
    assert found.condition == "slow"
    assert found.reasons[0].endswith("most in triad")
    assert "slower than its 7 peers" in found.reasons[0]
    assert {diagnosis.condition for diagnosis in diagnoses.values()} == {"ok"}


def test_another_model_is_not_a_peer() -> None:
    other = {gpu: check(gpu, {"gemm_fp32": 3.0, "triad": 2.0}, model="NVIDIA A100, 40 GiB, 400 W") for gpu in (6, 7)}

    diagnoses = diagnose(node(*map(check, range(6)), *other.values()), {})

    assert {diagnosis.condition for diagnosis in diagnoses.values()} == {"ok"}


def test_a_single_device_is_compared_with_its_own_past() -> None:
    slow, alike = node(check(0, {"triad": 1.3})), node(check(0))

    assert diagnose(alike, past_of(CHECKS_TO_JUDGE))["node1", "0"].condition == "ok"
    found = diagnose(slow, past_of(CHECKS_TO_JUDGE))["node1", "0"]
    assert found.condition == "slow"
    assert found.reasons == ("triad: 30% slower than in its last 3 checks",)


def test_two_checks_are_too_few_to_compare_with() -> None:
    assert diagnose(node(check(0, {"triad": 1.3})), past_of(CHECKS_TO_JUDGE - 1))["node1", "0"].condition == "ok"


def test_a_little_slower_than_its_past_is_suspect() -> None:
    assert diagnose(node(check(0, {"triad": 1.08})), past_of(5))["node1", "0"].condition == "suspect"


def test_wrong_results_and_silence_are_faults_whatever_the_readings_say() -> None:
    wrong = DeviceCheck("0", GPU, "GPU-0", check(0).seconds, wrong={"gemm_bf16": 2})
    silent = check(1, trouble="no answer within 10 s")

    diagnoses = diagnose(node(wrong, silent, check(2)), {})

    assert diagnoses["node1", "0"].condition == diagnoses["node1", "1"].condition == "faulty"
    assert diagnoses["node1", "0"].reasons == ("gemm_bf16: 2 results are wrong",)
    assert diagnoses["node1", "1"].reasons == ("no answer within 10 s",)
    assert diagnoses["node1", "2"].condition == "ok"


def test_twice_as_much_slower_than_before_as_is_suspect_is_still_suspect_and_more_is_slow() -> None:
    """The devices' repeats scatter by nothing, so that the ratio is exact."""

    def virtual(seconds: float) -> dict[tuple[str, str], DeviceCheck]:
        return node(DeviceCheck("0", "virtual", "GPU-0", {"triad": [seconds] * 5}))

    past = {"GPU-0": {"triad": [1.0] * CHECKS_TO_JUDGE}}
    conditions = [diagnose(virtual(seconds), past)["node1", "0"].condition for seconds in (2.0, 2.5, 3.0, 3.1)]
    assert conditions == ["ok", "suspect", "suspect", "slow"]


def test_a_cause_is_given_with_the_reasons_and_never_alone() -> None:
    cause = Cause("cooling", "cooling: the clock was held back by heat for 80% of the round")
    hot = DeviceCheck("7", GPU, "GPU-7", check(7, {"clock": 1.5}).seconds, cause=cause)
    healthy = DeviceCheck("0", GPU, "GPU-0", check(0).seconds, cause=cause)

    diagnoses = diagnose(node(healthy, *map(check, range(1, 7)), hot), {})

    assert diagnoses["node1", "7"].reasons[-1] == f"likely cause: {cause}"
    assert diagnoses["node1", "0"].reasons == ()


def test_the_past_keeps_the_fastest_reading_of_the_last_checks_of_each_device() -> None:
    past: Past = {}
    for visit in range(REMEMBERED_CHECKS + 5):
        past = remembered(past, node(check(0, {"triad": 1 + visit})))

    assert len(past["GPU-0"]["triad"]) == REMEMBERED_CHECKS
    assert past["GPU-0"]["triad"][-1] == min(check(0, {"triad": REMEMBERED_CHECKS + 5}).seconds["triad"])
    assert past["GPU-0"]["triad"][0] == min(check(0, {"triad": 6}).seconds["triad"])


def test_a_device_without_a_reading_keeps_its_past() -> None:
    past = past_of(4)

    assert remembered(past, node(check(1, trouble="no answer within 10 s"))) == past
