"""SlowGPUAnalysis: what is found, reported, remembered and ignored."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors import DeviceNameError, DeviceState, SlowGPUAnalysis, Verdict, wording
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.notices import GroupNotice, GroupSlower
from laggard.detectors.statistics.history import History

Seconds = NDArray[np.float64]

NOON_S = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC


def names(nodes: int, per_node: int = 4) -> tuple[DeviceId, ...]:
    return tuple((f"node{node}", str(gpu)) for node in range(nodes) for gpu in range(per_node))


def quiet(devices: int, rounds: int = 24, seed: int = 0) -> Seconds:
    """Healthy probe readings ``(rounds, devices, 1 repeat)``: chips 1.5 % apart, noise of 0.1 %."""
    rng = np.random.default_rng(seed)
    logs = np.clip(rng.normal(0, 0.015, devices), -0.03, 0.03) + rng.normal(0, 0.001, (rounds, devices))
    return 0.01 * np.exp(logs)[:, :, None]


def play(analysis: SlowGPUAnalysis, devices: tuple[DeviceId, ...], seconds: Seconds) -> list[tuple[int, Verdict]]:
    found = []
    for number, one_round in enumerate(seconds):
        found += [(number, v) for v in analysis.update_arrays(devices, one_round, now_s=NOON_S + 10 * number)]
    return found


def history_of(analysis: SlowGPUAnalysis) -> History:
    return History.from_state(analysis.to_state()["history"])


def who(found: list[tuple[int, Verdict]]) -> list[tuple[str, str | None]]:
    return [(verdict.host, verdict.gpu) for _, verdict in found]


def test_a_step_of_ten_percent_is_reported_once_with_its_numbers() -> None:
    seconds = quiet(16, 40)
    seconds[12:, 13] *= 1.11
    [(number, verdict)] = play(SlowGPUAnalysis(), names(4), seconds)
    assert number <= 16
    assert (verdict.host, verdict.gpu, verdict.severity, verdict.action) == ("node3", "1", "slow", "restart")
    assert verdict.slowdown == pytest.approx(1.11, abs=0.005)
    assert str(verdict.evidence).startswith("node3 gpu 1: 11 % ")
    assert "slower than its own past and than 15 peers since 12:02:00, for 4 rounds; by chance " in str(
        verdict.evidence
    )
    assert re.search(r"by chance less than once in [\d,]+ jobs$", str(verdict.evidence))


def test_a_step_below_the_smallest_that_matters_is_reported_and_never_restarts() -> None:
    seconds = quiet(16, 200)
    seconds[12:, 5] *= 1.04
    found = play(SlowGPUAnalysis(), names(4), seconds)
    assert who(found) == [("node1", "1")]
    assert {(verdict.severity, verdict.action) for _, verdict in found} == {("suspect", "report")}


def test_a_slowdown_that_grows_escalates() -> None:
    seconds = quiet(16, 60)
    seconds[12:, 5] *= 1.04
    seconds[30:, 5] *= 1.2
    seconds[45:, 5] *= 1.5
    found = play(SlowGPUAnalysis(), names(4), seconds)
    assert [verdict.severity for _, verdict in found] == ["suspect", "slow", "very slow"]


def test_a_device_is_suspected_at_once_and_has_become_slow_when_that_is_certain() -> None:
    seconds, analysis, slow = quiet(16, 40), SlowGPUAnalysis(), ("node3", "1")
    seconds[12:, 13] *= 1.2
    analysis.expect([*names(4), ("node9", "0")])
    assert [analysis.suspects(device) for device in (slow, ("node9", "0"), ("node8", "0"))] == [None] * 3
    known, undecided = [], []
    for one_round in seconds:
        verdicts = analysis.update_arrays(names(4), one_round)
        known.append((analysis.suspects(slow), analysis.became_slow(slow), bool(verdicts)))
        undecided.append(analysis.undecided())
    assert known[:12] == [(False, False, False)] * 12
    assert known[12] == (False, False, False)  # one round may be anything
    assert known[13] == (True, False, False)
    first = [verdict for *_, verdict in known].index(True)
    assert known[first - 1 : first + 1] == [(True, False, False), (True, True, True)]
    assert undecided == [[]] * 13 + [[slow]] * (first - 13) + [[]] * (40 - first)
    assert known[-1] == (True, True, False)
    assert not analysis.became_slow(("node0", "0"))
    assert not analysis.became_slow(("node8", "0"))
    assert analysis.learned == 16


def test_a_device_that_recovered_is_reported_again_when_it_slows_again() -> None:
    seconds = quiet(16, 60)
    seconds[12:20, 5] *= 1.2
    seconds[40:, 5] *= 1.2
    assert [number > 30 for number, _ in play(SlowGPUAnalysis(), names(4), seconds)] == [False, True]


def test_a_whole_slow_node_is_one_verdict_against_the_node() -> None:
    seconds = quiet(16, 40)
    seconds[12:, 8:12] *= 1.2
    found = play(SlowGPUAnalysis(), names(4), seconds)
    assert who(found) == [("node2", None)]
    assert "all its 4 devices" in str(found[0][1].evidence)


@pytest.mark.parametrize(("well", "count"), [(slice(8, 12), 2), (slice(8, 9), 1)], ids=["all", "one of four"])
def test_a_node_is_reported_again_once_it_was_well_and_not_for_one_of_its_devices(well: slice, count: int) -> None:
    seconds = quiet(16, 120)
    seconds[12:, 8:12] *= 1.2
    seconds[40:80, well] /= 1.2
    assert [each for each in who(play(SlowGPUAnalysis(), names(4), seconds)) if each[1] is None] == (
        [("node2", None)] * count
    )


def test_a_node_is_only_restarted_for_a_slowdown_that_matters_on_half_of_its_devices() -> None:
    seconds = quiet(16, 40)
    seconds[12:, 8:12] *= 1.03
    seconds[12:, 8] *= 1.08
    found = play(SlowGPUAnalysis(), names(4), seconds)
    assert {(v.gpu, v.severity, v.action) for _, v in found if v.action == "restart"} == {("0", "slow", "restart")}
    assert all(verdict.slowdown > 1.05 for _, verdict in found if verdict.action == "restart")
    assert {verdict.gpu for _, verdict in found if verdict.action == "report"} >= {"1", "2", "3"}


def test_a_node_is_as_slow_as_half_of_its_devices() -> None:
    seconds = quiet(16, 40)
    seconds[12:, 8:12] *= 1.2
    seconds[12:, 8] *= 1.5
    [(_, verdict)] = play(SlowGPUAnalysis(), names(4), seconds)
    assert (verdict.gpu, verdict.severity) == (None, "slow")
    assert verdict.slowdown == pytest.approx(1.2, abs=0.01)


def test_the_first_slow_round_has_its_date_if_that_is_not_the_day_of_the_verdict() -> None:
    seconds = quiet(16, 40)
    seconds[12:, 13] *= 1.11
    analysis = SlowGPUAnalysis()
    midnight_s = NOON_S - NOON_S % 86400
    found = [
        verdict
        for number, one_round in enumerate(seconds)
        for verdict in analysis.update_arrays(names(4), one_round, now_s=midnight_s + 10 * (number - 14))
    ]
    yesterday = datetime.fromtimestamp(midnight_s - 20, UTC)
    assert [f"since {yesterday:%Y-%m-%d} 23:59:40, for 4 rounds" in str(verdict.evidence) for verdict in found] == [
        True
    ]


@pytest.mark.parametrize("name", [3, "rank3", "r3", ("node1", 3), ("node1",), ("node1", "3", "x")])
def test_a_name_that_is_not_a_host_and_a_gpu_is_refused_at_once(name: Any) -> None:
    expected = re.escape(f"{name!r} names no device: use (host, gpu), two texts, for instance ('node1', '0')")
    with pytest.raises(DeviceNameError, match=expected):
        SlowGPUAnalysis().update({name: [1.0], ("node1", "0"): [1.0]})
    with pytest.raises(DeviceNameError, match=expected):
        SlowGPUAnalysis().check({name: [1.0], ("node1", "0"): [1.0]})
    with pytest.raises(DeviceNameError, match=expected):
        SlowGPUAnalysis(groups={name: "stage 1"})
    with pytest.raises(DeviceNameError, match=expected):
        SlowGPUAnalysis().expect([name])


def test_half_of_the_devices_slow_by_their_own_past_are_found_among_two_nodes() -> None:
    seconds = quiet(4, 40)
    seconds[12:, 2:] *= 1.2
    assert who(play(SlowGPUAnalysis(), names(2, 2), seconds)) == [("node1", None)]


def test_no_device_is_accused_if_half_of_them_get_faster() -> None:
    seconds = quiet(8, 40)
    seconds[12:, 4:] /= 1.2
    assert not play(SlowGPUAnalysis(), names(2), seconds)


@pytest.mark.parametrize("slow", [1, 2], ids=["one device", "one node of two"])
def test_of_four_devices_born_slow_one_is_accused_and_a_tie_is_not(slow: int) -> None:
    seconds = quiet(4, 20)
    seconds[:, :slow] *= 1.5
    assert who(play(SlowGPUAnalysis(), names(2, 2), seconds)) == ([("node0", "0")] if slow == 1 else [])


@pytest.mark.parametrize(("ratio", "found"), [(1.9, False), (2.3, True)])
def test_of_two_devices_only_a_factor_of_two_tells_which_is_slow(ratio: float, found: bool) -> None:
    seconds = quiet(2, 20)
    seconds[:, 1] *= ratio
    assert bool(play(SlowGPUAnalysis(), names(1, 2), seconds)) == found
    readings = dict(zip(names(1, 2), seconds[:4, :, 0].T.tolist(), strict=True))
    assert bool(SlowGPUAnalysis().check(readings)) == found


def test_no_device_is_accused_of_a_common_slowdown() -> None:
    seconds = quiet(16, 40)
    seconds[12:] *= 1.5
    assert not play(SlowGPUAnalysis(), names(4), seconds)


def test_a_slowdown_of_all_devices_is_a_notice_with_its_moment_and_so_is_its_end() -> None:
    seconds, analysis = quiet(16, 60), SlowGPUAnalysis()
    seconds[12:36] *= 1.3
    assert not play(analysis, names(4), seconds)
    assert list(map(wording.notice, analysis.take_notices())) == [
        "all 16 devices are 30 % slower than before since 2023-11-15 12:02:00 UTC: no single device is at fault",
        "all 16 devices are as fast as before again since 2023-11-15 12:06:00 UTC: they were 30 % slower than that"
        " for 240 s",
    ]
    assert not analysis.take_notices()


def test_a_slowdown_of_both_of_two_devices_is_a_notice_and_that_of_the_only_one_is_none() -> None:
    analysis, alone = SlowGPUAnalysis(), SlowGPUAnalysis()
    for each, size in ((analysis, 2), (alone, 1)):
        seconds = quiet(size, 30)
        seconds[12:] *= 1.3
        play(each, names(1, size), seconds)
    assert [wording.notice(notice)[:41] for notice in analysis.take_notices()] == [
        "all 2 devices are 30 % slower than before"
    ]
    assert not alone.take_notices()


def test_a_group_that_slows_down_is_named_by_its_first_device() -> None:
    seconds, devices = quiet(16, 30), names(4)
    seconds[12:, 8:] *= 1.3
    analysis = SlowGPUAnalysis(groups={device: number // 8 for number, device in enumerate(devices)})
    assert not play(analysis, devices, seconds)
    [notice] = analysis.take_notices()
    assert wording.notice(notice).startswith("the 8 devices like node2 gpu 0 are 30 % slower")


def test_devices_that_join_leave_what_is_known_of_all_as_it_is() -> None:
    seconds, analysis = quiet(20, 60), SlowGPUAnalysis()
    seconds[12:36] *= 1.3
    play(analysis, names(4), seconds[:30, :16])
    play(analysis, names(5), seconds[30:])
    assert [notice.shift.is_over for notice in analysis.take_notices() if isinstance(notice, GroupSlower)] == [
        False,
        True,
    ]


def test_work_that_begins_on_all_devices_is_no_slowdown() -> None:
    seconds, devices, analysis = quiet(16, 60), names(4), SlowGPUAnalysis()
    seconds[12:] *= 1.5
    for number, one_round in enumerate(seconds):
        states = np.full(16, DeviceState.BUSY if number >= 12 else 0, np.uint8)
        analysis.update_arrays(devices, one_round, now_s=NOON_S + 10 * number, states=states)
    assert not analysis.take_notices()


def test_readings_that_wander_are_a_notice() -> None:
    rng, noise, analysis = np.random.default_rng(1), np.zeros(16), SlowGPUAnalysis()
    for _ in range(120):
        noise = 0.95 * noise + 0.02 * (1 - 0.95**2) ** 0.5 * rng.standard_normal(16)
        analysis.update_arrays(names(4), np.exp(noise)[:, None])
    [notice] = analysis.take_notices()
    assert re.fullmatch(
        r"all 16 devices: readings wander by \d\.\d % over many rounds, so only .* \d+ % .*", wording.notice(notice)
    )


def test_readings_that_scatter_are_a_notice_once_in_a_run() -> None:
    def follow(analysis: SlowGPUAnalysis) -> list[GroupNotice]:
        for _ in range(120):
            analysis.update_arrays(names(4), np.exp(0.1 * rng.standard_normal(16))[:, None])
        return analysis.take_notices()

    rng, analysis = np.random.default_rng(1), SlowGPUAnalysis()
    [notice] = follow(analysis)
    for same_run in (True, False):
        again = SlowGPUAnalysis.from_state(json.loads(json.dumps(analysis.to_state())), same_run=same_run)
        assert len(follow(again)) == (0 if same_run else 1)
    assert re.fullmatch(
        r"all 16 devices: readings scatter by \d+\.\d % from round to round, so a slowdown by less than 1\d % is .*",
        wording.notice(notice),
    )


@pytest.mark.parametrize(("every", "rounds", "ratio"), [(5, 1, 1.2), (20, 3, 1.5)])
def test_a_device_that_is_slow_at_times_is_a_suspect_within_200_rounds_and_said_so_once(
    every: int, rounds: int, ratio: float
) -> None:
    seconds = quiet(16, 400)
    seconds[(np.arange(400) % every < rounds) & (np.arange(400) > 8), 5] *= ratio
    [(number, verdict)] = play(SlowGPUAnalysis(), names(4), seconds)
    assert number <= 200
    assert verdict.evidence.at_times
    assert (verdict.host, verdict.gpu, verdict.severity, verdict.action) == ("node1", "1", "suspect", "report")
    assert verdict.slowdown == pytest.approx(ratio, rel=0.02)
    assert "at times: in " in str(verdict.evidence)


def test_a_device_that_is_slow_at_times_like_all_others_is_no_suspect() -> None:
    rng, seconds = np.random.default_rng(2), quiet(16, 250)
    seconds[rng.random((250, 16)) < 0.2] *= 1.2
    assert not any(verdict.evidence.at_times for _, verdict in play(SlowGPUAnalysis(), names(4), seconds))


def test_a_phase_leaves_no_trace_in_the_reference() -> None:
    seconds = quiet(16, 400)
    for begins in (100, 300):
        seconds[begins : begins + 9, 5] *= 1.2
    found = [number for number, _ in play(SlowGPUAnalysis(), names(4), seconds)]
    assert [number // 100 for number in found] == [1, 3]  # each is found
    assert all(number % 100 < 9 for number in found)  # the second one is a little less surprising


def test_devices_are_compared_within_their_group_only() -> None:
    seconds = quiet(16, 40)
    seconds[:, 8:] *= 1.15
    seconds[20:, 9] *= 1.1
    groups = {device: device[0] in ("node0", "node1") for device in names(4)}
    assert who(play(SlowGPUAnalysis(groups=groups), names(4), seconds)) == [("node2", "1")]


def test_bad_readings_change_nothing() -> None:
    seconds = quiet(8, 30)
    devices = names(2)
    seconds[12:, 3] *= 1.2
    analysis = SlowGPUAnalysis()
    found = []
    for number, one_round in enumerate(seconds):
        readings = dict(zip(devices, one_round.tolist(), strict=True))
        readings["node0", "0"] += [0.0, -1.0, math.inf, math.nan]
        if number % 3 == 0:
            del readings["node0", "1"]
        found += analysis.update(readings)
    assert [(verdict.host, verdict.gpu) for verdict in found] == [("node0", "3")]


@pytest.mark.parametrize("readings", [{}, {("a", "0"): []}, {("a", "0"): [math.nan]}])
def test_a_round_without_a_reading_is_not_an_error(readings: dict[DeviceId, list[float]]) -> None:
    analysis = SlowGPUAnalysis()
    assert analysis.update(readings) == []
    assert analysis.update({("a", "0"): [1.0], ("b", "0"): [1.0]}) == []
    assert analysis.check(readings) == []


def test_a_device_alone_is_never_accused() -> None:
    seconds = quiet(1, 40)
    seconds[20:] *= 3
    assert not play(SlowGPUAnalysis(), names(1, 1), seconds)


def test_check_finds_a_device_that_is_slow_on_one_of_several_probes() -> None:
    rounds = [quiet(16, 4, seed)[:, :, 0].T.copy() for seed in range(3)]
    rounds[1][5] *= 1.2
    by_probe = dict(zip(("clock", "gemm", "triad"), rounds, strict=True))
    readings = {
        device: {probe: seconds[row].tolist() for probe, seconds in by_probe.items()}
        for row, device in enumerate(names(4))
    }
    assert [(verdict.host, verdict.gpu) for verdict in SlowGPUAnalysis().check(readings)] == [("node1", "1")]


def test_thresholds_can_be_changed_while_the_job_runs() -> None:
    seconds = quiet(16, 60)
    seconds[12:, 5] *= 1.3
    analysis = SlowGPUAnalysis(min_slowdown=1.5)
    assert [verdict.action for _, verdict in play(analysis, names(4), seconds[:30])] == ["report"]
    analysis.min_slowdown = 1.1
    assert [verdict.action for _, verdict in play(analysis, names(4), seconds[30:])] == ["restart"]


def test_state_survives_json_and_follows_a_device_that_moved() -> None:
    seconds = quiet(16, 30)
    devices = names(4)
    uuids = {device: f"GPU-{number}" for number, device in enumerate(devices)}
    first = SlowGPUAnalysis()
    play(first, devices, seconds[:10])
    state = first.to_state(uuids)
    moved = (*devices[:15], ("node9", "0"))
    again = SlowGPUAnalysis.from_state(
        json.loads(json.dumps(state, allow_nan=False)),
        identity=dict(zip(moved, uuids.values(), strict=True)),
        same_run=False,
    )
    seconds[:, 15] *= 1.06  # no born-slow verdict, but slower than its own past elsewhere
    found = play(again, moved, seconds[10:20])
    assert who(found) == [("node9", "0")]
    assert found[0][0] < 6


def test_a_place_taken_over_by_another_device_does_not_inherit() -> None:
    seconds = quiet(16, 20)
    first = SlowGPUAnalysis()
    play(first, names(4), seconds)
    state = first.to_state({("node3", "3"): "GPU-old"})
    again = SlowGPUAnalysis.from_state(state, identity={("node3", "3"): "GPU-new"})
    assert ("node3", "3") not in again.devices
    assert len(again.devices) == 15


def test_a_known_device_takes_its_history_to_its_new_place() -> None:
    first = SlowGPUAnalysis()
    play(first, names(4), quiet(16, 20))
    state = first.to_state({("node0", "0"): "GPU-a"})
    again = SlowGPUAnalysis.from_state(state, identity={("node3", "3"): "GPU-a"})
    assert sorted(again.devices) == sorted(set(names(4)) - {("node0", "0")})


def test_a_state_comes_back_from_json_as_it_was() -> None:
    analysis, devices = SlowGPUAnalysis(), names(4)
    seconds = quiet(16, 20)
    seconds[12:, 3] *= 1.2
    seconds[:, 5] = np.nan
    play(analysis, devices, seconds)
    state = analysis.to_state()
    again = SlowGPUAnalysis.from_state(json.loads(json.dumps(state, allow_nan=False)))
    assert again.to_state() == state
    assert who(play(again, devices, seconds[18:])) == []  # reported already
    empty = SlowGPUAnalysis().to_state()
    assert SlowGPUAnalysis.from_state(json.loads(json.dumps(empty))).to_state() == empty


def test_of_devices_that_are_not_decided_on_the_one_with_the_most_evidence_comes_first() -> None:
    analysis = SlowGPUAnalysis()
    seconds = np.full((15, 16), 1.0)
    seconds[13:, 3] = seconds[12:, 7] = 1.2
    for one_round in seconds:
        analysis.update_arrays(names(4), one_round[:, None])
    assert analysis.undecided() == [names(4)[7], names(4)[3]]


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="state has version 99, this program reads version 11"):
        SlowGPUAnalysis.from_state(SlowGPUAnalysis().to_state() | {"version": 99})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"false_alarm_budget": 0.0}, "false_alarm_budget must be a probability between 0 and 1, got 0.0"),
        ({"false_alarm_budget": 1.0}, "false_alarm_budget must be a probability between 0 and 1, got 1.0"),
        ({"min_slowdown": 1.0}, "min_slowdown must be a ratio above 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlowGPUAnalysis(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [{"cost_s": -1.0}, {"cost_s": 1.0, "remaining_s": -1.0}])
def test_a_negative_cost_is_refused(cost: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be zero or more seconds"):
        RestartCost(**cost)


def test_check_finds_a_device_born_slow_and_only_suspects_ordinary_silicon() -> None:
    seconds = quiet(64, 4)[:, :, 0].T
    seconds[5], seconds[9] = 0.01 * 1.2, 0.01 * 1.062
    found = SlowGPUAnalysis().check(dict(zip(names(16), seconds.tolist(), strict=True)))
    assert {(v.host, v.gpu, v.severity, v.action) for v in found} == {
        ("node1", "1", "slow", "restart"),
        ("node2", "1", "suspect", "report"),
    }
    assert str(found[0].evidence).startswith("node1 gpu 1: ")
    assert str(found[0].evidence).endswith("slower than its 63 peers")


@pytest.mark.parametrize("devices", [4, 16, 64, 1024])
def test_check_finds_a_device_that_is_slow_in_three_of_four_samples(devices: int) -> None:
    seconds = quiet(devices, 4)[:, :, 0].T
    seconds[2] = 0.01 * np.array([1.0, 1.13, 1.13, 1.14])
    [verdict] = SlowGPUAnalysis().check(dict(zip(names(devices // 4), seconds.tolist(), strict=True)))
    assert (verdict.host, verdict.gpu, verdict.action) == ("node0", "2", "restart")
    assert verdict.slowdown == pytest.approx(1.13, abs=0.03)


def test_check_accuses_no_device_for_samples_of_which_half_are_disturbed() -> None:
    seconds = quiet(64, 4)[:, :, 0].T
    seconds[2, 2:] *= 1.5
    assert SlowGPUAnalysis().check(dict(zip(names(16), seconds.tolist(), strict=True))) == []


def test_check_judges_the_devices_of_a_node_together() -> None:
    """Among chips that differ by 3 %, a node that is 10 % slower has devices that no one would suspect."""
    rng = np.random.default_rng(4)
    chips = rng.normal(0, 0.03, (16, 8))
    seconds = np.exp(chips + np.log(1.1) * (np.arange(16) == 3)[:, None]).reshape(128, 1)
    seconds = seconds * np.exp(rng.normal(0, 0.002, (128, 4)))
    found = SlowGPUAnalysis().check(dict(zip(names(16, 8), seconds.tolist(), strict=True)))
    [verdict] = [verdict for verdict in found if verdict.action == "restart"]
    assert (verdict.host, verdict.gpu) == ("node3", None)
    assert re.match(r"node3: [\d.]+ % slower than the other 15 nodes, by its 8 devices together", str(verdict.evidence))
    one_slow = chips.copy()
    one_slow[3, 5] += np.log(1.5)
    seconds = np.exp(one_slow.reshape(128, 1) + rng.normal(0, 0.002, (128, 4)))
    found = SlowGPUAnalysis().check(dict(zip(names(16, 8), seconds.tolist(), strict=True)))
    assert [(v.host, v.gpu) for v in found if v.action == "restart"] == [("node3", "5")]


def test_state_stays_under_300_bytes_a_device() -> None:
    assert sum(array.nbytes for array in History.empty(1000).arrays().values()) <= 300 * 1000


def test_a_week_of_rounds_overflows_nothing() -> None:
    analysis = SlowGPUAnalysis()
    seconds = quiet(16, 40)
    seconds[20:, 5] *= 1.2
    play(analysis, names(4), seconds)
    history = analysis._history
    for array in (history.rounds, history.lasts, history.counted):
        array[:] = 200_000
    assert not play(analysis, names(4), quiet(16, 8, seed=1))
    assert all(np.isfinite(array).all() for array in (history.base, history.change, history.distance))


def test_a_devices_own_noise_is_known_to_the_next_job() -> None:
    seconds = quiet(16, 80)
    seconds[8::2, 3] *= 1.1
    first = SlowGPUAnalysis()
    play(first, names(4), seconds)
    again = SlowGPUAnalysis.from_state(first.to_state(), same_run=False)
    np.testing.assert_array_equal(history_of(again).change, history_of(first).change)
    assert history_of(first).change[3] > 10 * np.median(history_of(first).change)
    assert not history_of(again).number.any()


@pytest.mark.parametrize("same_run", [True, False])
def test_the_next_launch_knows_how_long_disturbances_last_and_a_new_run_counts_them_anew(*, same_run: bool) -> None:
    seconds = quiet(16, 200)
    for begins in range(20, 190, 12):
        seconds[begins : begins + 5, begins % 16] *= 1.2
    first = SlowGPUAnalysis()
    play(first, names(4), seconds)
    kept = json.loads(json.dumps(first.to_state()))
    tails = SlowGPUAnalysis.from_state(kept, same_run=same_run)._groups.tails
    np.testing.assert_array_equal(tails.went_on, first._groups.tails.went_on)
    assert tails.went_on.sum() > 10
    assert (tails.counted == (first._groups.tails.counted if same_run else 0)).all()


def test_what_a_group_learned_is_kept_when_a_device_joins_and_not_when_its_peers_change() -> None:
    analysis = SlowGPUAnalysis(groups=dict.fromkeys(names(5), "a"))
    play(analysis, names(4), quiet(16, 40))
    rounds = analysis._groups.noise.rounds.tolist()
    analysis.expect(names(5))
    assert analysis._groups.noise.rounds.tolist() == rounds != [0]
    analysis.set_groups({device: device[0] == "node1" for device in names(5)})
    assert analysis._groups.noise.rounds.tolist() == [0, 0]


def test_half_of_the_devices_that_are_slower_from_the_start_are_accused_of_nothing() -> None:
    seconds = quiet(16, 30)
    seconds[:, 4:12] *= 1.5
    assert not play(SlowGPUAnalysis(), names(4), seconds)


def test_a_slower_model_is_accused_unless_it_has_a_label_of_its_own() -> None:
    seconds, devices = quiet(20, 40), names(5)
    slower = [*range(4, 8), *range(12, 16)]
    seconds[:, slower] *= 1.5
    found = [verdict for _, verdict in play(SlowGPUAnalysis(), devices, seconds)]
    assert {(v.host, v.gpu, v.action) for v in found} == {("node1", None, "restart"), ("node3", None, "restart")}
    seconds[20:, 5] *= 1.1
    labels = {device: number in slower for number, device in enumerate(devices)}
    assert who(play(SlowGPUAnalysis(groups=labels), devices, seconds)) == [("node1", "1")]
