"""What devices are doing beside the probes, and what that means for their past."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from laggard.collectors.device import DeviceId
from laggard.detectors import DeviceState, SlowGPUAnalysis, SlowGPUDetector, Verdict
from laggard.detectors.judging.device_states import DeviceStates
from laggard.kvstore.control import LaunchRecord, NodeRecord, Signs

DEVICES: list[DeviceId] = [(f"node{node}", gpu) for node in range(4) for gpu in ("0", "1")]
LAST = DEVICES[-1]
IDLE, BUSY, WARM = DeviceState(0), DeviceState.BUSY, DeviceState.WARM


def states_of(states: DeviceStates, *, has_progress: bool = False) -> list[DeviceState]:
    return list(states.of_round(DEVICES, {}, has_progress=has_progress).values())


def note_all(states: DeviceStates, **tags: int) -> None:
    for device in DEVICES:
        states.note(device, {name: str(value) for name, value in tags.items()})


def test_without_readings_devices_are_busy_from_the_programs_first_progress_on() -> None:
    assert states_of(DeviceStates()) == [IDLE] * 8
    assert states_of(DeviceStates(), has_progress=True) == [BUSY] * 8


def test_a_device_is_busy_once_it_was_in_use_in_two_rounds_on_end() -> None:
    states = DeviceStates()
    for utilisation, state in ((0, IDLE), (90, IDLE), (3, IDLE), (90, IDLE), (90, BUSY), (90, BUSY), (0, IDLE)):
        note_all(states, utilisation=utilisation)
        assert states_of(states, has_progress=True) == [state] * 8


@pytest.mark.parametrize(("utilisation", "state"), [(9, IDLE), (10, BUSY)])
def test_a_device_is_in_use_from_a_tenth_of_the_time_on(utilisation: int, state: DeviceState) -> None:
    states = DeviceStates()
    for expected in (IDLE, state):
        note_all(states, utilisation=utilisation)
        assert states_of(states) == [expected] * 8


def test_a_device_whose_clock_was_low_was_idle() -> None:
    states = DeviceStates()
    for _ in range(3):
        states.note(LAST, {"utilisation": "40", "warmed": "yes"})
        assert states_of(states)[-1] == IDLE


def test_a_device_is_cold_only_beside_warmer_peers_and_heat_is_no_state() -> None:
    states = DeviceStates()
    note_all(states, temperature=40)
    states.note(DEVICES[0], {"temperature": "90"})
    assert states_of(states) == [WARM] * 8
    note_all(states, temperature=65)
    states.note(LAST, {"temperature": "50"})
    assert states_of(states) == [WARM] * 7 + [IDLE]


@pytest.mark.parametrize(("temperature", "state"), [(55, IDLE), (56, WARM)])
def test_a_device_is_cold_if_it_is_ten_degrees_colder_than_its_typical_peer(
    temperature: int, state: DeviceState
) -> None:
    states = DeviceStates()
    note_all(states, temperature=65)
    states.note(LAST, {"temperature": str(temperature)})
    assert states_of(states)[-1] == state
    assert states_of(states, has_progress=True)[-1] == state | BUSY  # its use is not known


def test_a_device_may_be_busy_or_warm_or_both_or_neither() -> None:
    found = set()
    for utilisation, temperature in ((0, 50), (0, 65), (90, 50), (90, 65)):
        states = DeviceStates()
        note_all(states, utilisation=90, temperature=65)
        states_of(states)
        states.note(LAST, {"utilisation": str(utilisation), "temperature": str(temperature)})
        found.add(states_of(states)[-1])
    assert len(found) == 4


def test_what_a_device_said_earlier_does_not_count_when_it_says_nothing() -> None:
    states = DeviceStates()
    note_all(states, utilisation=90, temperature=65)
    states_of(states)
    states.note(LAST, {})
    assert states_of(states) == [BUSY | WARM] * 7 + [IDLE]


def means_after(rounds: Sequence[tuple[int, int]], label_of_first: str | None = None) -> tuple[float, float] | None:
    """Return how busy the last device and its peers are, after rounds of their utilisations, if it is much busier."""
    states = DeviceStates()
    for own, others in rounds:
        note_all(states, utilisation=others)
        states.note(LAST, {"utilisation": str(own)})
        states_of(states)
    return states.much_busier(LAST, {} if label_of_first is None else dict.fromkeys(DEVICES[:-1], label_of_first))


@pytest.mark.parametrize(
    ("rounds", "means"),
    [
        ([(55, 50)] * 2, (55, 50)),  # in the second round it is busy
        ([(55, 50)], None),
        ([(54, 50)] * 9, None),
        ([(90, 9)] * 9, None),  # no peer is busy
        ([(90, 50), (90, 50), (60, 50)], (75, 50)),
        ([(50, 40)] * 60 + [(82, 40)], (51, 40)),  # the newest of 32 rounds
    ],
)
def test_a_device_is_much_busier_if_its_mean_use_is_five_percent_above_its_peers(
    rounds: Sequence[tuple[int, int]], means: tuple[float, float] | None
) -> None:
    found = means_after(rounds)
    assert found == (None if means is None else pytest.approx(means, rel=1e-6))
    assert means_after(rounds, "another model") is None


def test_who_is_much_busier_than_its_peers_is_known_after_some_rounds() -> None:
    states, random = DeviceStates(), np.random.default_rng(3)
    for _ in range(40):
        for device in DEVICES:
            share = random.normal(88 if device == LAST else 80, 3)
            states.note(device, {"utilisation": f"{min(100, share):.0f}"})
        states_of(states)
    busy = states.much_busier(LAST, {})
    assert busy is not None
    assert busy == pytest.approx((88, 80), abs=1)
    assert {states.much_busier(device, {}) for device in DEVICES[:-1]} == {None}
    assert states.much_busier(LAST, {LAST: "a stage of its own"}) is None
    assert states.much_busier(("node9", "0"), {}) is None


class Rounds:
    """Rounds of readings with states, for an analysis."""

    def __init__(self) -> None:
        self.analysis = SlowGPUAnalysis()
        self._random = np.random.default_rng(5)
        self._number = 0

    def play(
        self, count: int, ratios: Mapping[DeviceId, float], states: Mapping[DeviceId, DeviceState] | None
    ) -> list[Verdict]:
        found = []
        for _ in range(count):
            noise = np.exp(self._random.normal(0, 0.001, len(DEVICES)))
            readings = {
                device: [0.01 * ratios.get(device, 1.0) * float(each)]
                for device, each in zip(DEVICES, noise, strict=True)
            }
            self._number += 1
            found += self.analysis.update(readings, 3.0 * self._number, states)
        return found


ALL_BUSY = dict.fromkeys(DEVICES, BUSY)
ONE_IDLE = ALL_BUSY | {LAST: IDLE}


def test_a_device_that_becomes_busy_is_not_slow_by_what_it_read_idle() -> None:
    rounds = Rounds()
    assert rounds.play(20, {LAST: 0.94}, ONE_IDLE) == []
    assert rounds.play(40, {}, ALL_BUSY) == []
    assert [verdict.gpu for verdict in rounds.play(8, {LAST: 1.06}, ALL_BUSY)] == ["1"]
    without = Rounds()
    without.play(20, {LAST: 0.94}, None)
    assert without.play(20, {}, None) != []


def test_a_past_that_was_learned_busy_holds_when_the_device_is_idle_and_busy_again() -> None:
    rounds = Rounds()
    rounds.play(20, {}, ALL_BUSY)
    assert rounds.play(20, {LAST: 0.94}, ONE_IDLE) == []
    assert rounds.play(8, {LAST: 1.06}, ALL_BUSY) != []


@pytest.mark.parametrize(("idle", "busy", "slower"), [(1.08, 1.2, True), (1.11, 1.2, False), (1.0, 1.0, False)])
def test_a_device_is_slow_in_its_state_if_it_was_less_than_half_as_slow_in_another(
    idle: float, busy: float, slower: bool
) -> None:
    rounds = Rounds()
    rounds.play(20, {LAST: idle}, dict.fromkeys(DEVICES, IDLE))
    assert not rounds.analysis.slow_in_this_state(LAST)
    rounds.play(8, {LAST: busy}, ALL_BUSY)
    assert rounds.analysis.slow_in_this_state(LAST) == slower
    assert (rounds.analysis.episode(LAST) is None) == (busy == 1)
    assert not rounds.analysis.slow_in_this_state(("node9", "0"))


def test_a_device_of_which_nothing_is_said_is_idle() -> None:
    rounds = Rounds()
    others = dict.fromkeys(DEVICES[:-1], BUSY)
    rounds.play(20, {LAST: 0.94}, others)
    assert rounds.play(20, {}, ALL_BUSY) == []


def test_a_busy_past_is_learned_from_busy_rounds_only() -> None:
    rounds = Rounds()
    rounds.play(20, {LAST: 0.94}, ONE_IDLE)
    for _ in range(8):
        assert rounds.play(1, {}, ALL_BUSY) == []
        assert rounds.play(3, {LAST: 0.94}, ONE_IDLE) == []
    assert rounds.play(20, {}, ALL_BUSY) == []


def test_a_device_that_became_busy_is_compared_with_its_peers_at_once() -> None:
    rounds = Rounds()
    rounds.play(20, {LAST: 0.94}, ONE_IDLE)
    [verdict] = rounds.play(7, {LAST: 1.2}, ALL_BUSY)
    assert str(verdict.evidence).startswith("node3 gpu 1: 20 % slower than its 7 peers")


def test_states_survive_a_relaunch() -> None:
    rounds = Rounds()
    rounds.play(20, {}, ALL_BUSY)
    state = json.loads(json.dumps(rounds.analysis.to_state()))
    rounds.analysis = SlowGPUAnalysis.from_state(state)
    assert rounds.play(8, {LAST: 0.94}, ONE_IDLE) == []
    assert rounds.play(8, {LAST: 1.06}, ALL_BUSY) != []


def test_all_states_at_once_learn_anew_and_accuse_nobody() -> None:
    rounds, random = Rounds(), np.random.default_rng(9)
    rounds.play(20, {}, dict.fromkeys(DEVICES, IDLE))
    load = {device: float(random.uniform(1.18, 1.22)) for device in DEVICES}
    assert rounds.play(60, load, ALL_BUSY) == []


class Launch:
    """A launch whose samples have tags, judged as in a job."""

    def __init__(self) -> None:
        self.detector = SlowGPUDetector(min_slowdown=1.05, restart_cost=0)
        nodes = tuple(NodeRecord(f"node{node}", "", ("0", "1")) for node in range(4))
        self.signs = Signs(0)
        self.detector._judge.begin(LaunchRecord(0, nodes, ()), "run", lambda: self.signs)
        self._random = np.random.default_rng(7)
        self._number = 0

    def rounds(self, count: int, ratio: float, tags: Sequence[Mapping[str, str]]) -> list[Verdict]:
        """Play rounds in which the last node has this ratio; the tags are those of the others and of that node."""
        found = []
        for _ in range(count):
            self._number += 1
            readings = {}
            for device in DEVICES:
                is_last = device[0] == "node3"
                readings[device] = [0.01 * (ratio if is_last else 1) * float(np.exp(self._random.normal(0, 0.001)))]
                self.detector.note_device(device, {"host": device[0], "gpu": device[1], **tags[is_last]})
            found += self.detector.judge(readings, 3.0 * self._number)
        return found


ALL_IDLE = ({"utilisation": "0"}, {"utilisation": "0"})
LAST_BUSIER = ({"utilisation": "80"}, {"utilisation": "90"})


def test_devices_that_are_slower_only_because_they_have_more_to_do_are_reported() -> None:
    launch = Launch()
    assert launch.rounds(12, 1.0, ALL_IDLE) == []
    found = launch.rounds(40, 1.1, LAST_BUSIER)
    assert {(verdict.host, verdict.action) for verdict in found} == {("node3", "report")}
    assert str(found[-1].evidence).endswith(
        "; no restart, since it was hardly slower than its peers when idle, and is busier than they are "
        "(90 % against 80 %)"
    )
    assert [verdict.action for verdict in launch.rounds(8, 1.3, LAST_BUSIER)] == ["restart"]


@pytest.mark.parametrize(
    ("idle_ratio", "busy"),
    [
        (1.1, LAST_BUSIER),  # it was as slow when idle
        (1.0, ({"utilisation": "80"}, {"utilisation": "80"})),  # it is no busier
        (1.0, ({"utilisation": "80"}, {"utilisation": "90", "cause": '["cooling", "held back by heat"]'})),
    ],
)
def test_devices_that_may_be_slow_for_another_reason_are_restarted_for(
    idle_ratio: float, busy: Sequence[Mapping[str, str]]
) -> None:
    launch = Launch()
    found = launch.rounds(4, idle_ratio, ALL_IDLE) + launch.rounds(20, 1.1, busy)
    assert "restart" in {verdict.action for verdict in found}


def test_a_device_that_was_hardly_slow_for_long_has_cost_something_only_since_it_is_slow() -> None:
    rounds = Rounds()
    assert rounds.play(12, {}, None) == []
    rounds.play(100, {LAST: 1.03}, None)
    rounds.play(4, {LAST: 2.0}, None)
    episode = rounds.analysis.episode(LAST)
    assert episode is not None
    assert episode.costly_part == pytest.approx(4 / 104)
    assert episode.share_lost == pytest.approx(0.5, abs=0.02)
