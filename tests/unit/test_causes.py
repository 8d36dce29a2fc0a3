"""From symptoms to a cause: every rule has its symptoms, and what explains more goes first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from laggard.collectors.causes import RULES, UNKNOWN, Cause, cause_of
from laggard.collectors.symptoms import DeviceStatus, Symptoms, missing_links

SECOND_NS = 1e9
# A healthy, busy device: nothing of it explains a slowness.
HEALTHY = {
    "sm_clock_mhz": 1755.0,
    "sm_clock_max_mhz": 1980.0,
    "temperature_c": 64.0,
    "power_w": 690.0,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "pcie_width": 16.0,
    "pcie_width_max": 16.0,
    "pcie_generation": 5.0,
    "pcie_generation_max": 5.0,
    "remap_failed": 0.0,
    "remap_pending": 0.0,
}

CASES = [
    (
        "memory",
        Symptoms(10, HEALTHY | {"remap_failed": 1}),
        "memory: a row could not be remapped; the GPU should be replaced",
    ),
    ("memory", Symptoms(10, HEALTHY | {"remap_pending": 1}), "memory: a repair is pending until the GPU is reset"),
    ("memory", Symptoms(10, HEALTHY, xids=(13, 94)), "memory: the driver reported XID 94"),
    ("memory", Symptoms(10, HEALTHY, {"ecc_corrected": 12}), "memory: 12 corrected ECC errors during the round"),
    (
        "lost",
        Symptoms(10, HEALTHY, xids=(79,)),
        "GPU: the driver reported XID 79; the GPU has fallen off the bus or does not answer",
    ),
    ("NVLink", Symptoms(10, HEALTHY, links_down=(3, 7)), "NVLink: link 3, 7 is down"),
    ("NVLink", Symptoms(10, HEALTHY, {"nvlink_replays": 4}), "NVLink: 4 replays during the round"),
    (
        "cooling",
        Symptoms(
            10,
            HEALTHY | {"temperature_c": 91},
            {"held_by_heat_ns": 2 * SECOND_NS, "held_by_heat_hardware_ns": 6 * SECOND_NS},
        ),
        "cooling: the clock was held back by heat for 80% of the round, at 91 °C",
    ),
    (
        "power brake",
        Symptoms(10, HEALTHY, {"held_by_power_brake_ns": 10 * SECOND_NS}),
        "power supply: the power brake was on for 100% of the round",
    ),
    (
        "lowered power limit",
        Symptoms(10, HEALTHY | {"power_limit_w": 400}),
        "power cap: the limit was set to 400 W, the board's default is 700 W",
    ),
    ("PCIe", Symptoms(10, HEALTHY | {"pcie_width": 8}), "PCIe: the link's width is 8, but 16 is possible"),
    ("PCIe", Symptoms(10, HEALTHY | {"pcie_generation": 3}), "PCIe: the link's generation is 3, but 5 is possible"),
    ("PCIe", Symptoms(10, HEALTHY, {"pcie_replays": 7}), "PCIe: 7 replays during the round"),
    (
        "neighbour",
        Symptoms(10, HEALTHY, foreign_pids=(4321,)),
        "a neighbour: process 4321 of another job runs on the device; the hardware is not to blame",
    ),
    (
        "power cap",
        Symptoms(10, HEALTHY, {"held_by_power_cap_ns": 5 * SECOND_NS}),
        "power cap: the clock was held back for 50% of the round, at 690 W",
    ),
]


@pytest.mark.parametrize(("rule", "symptoms", "sentence"), CASES, ids=[sentence[:30] for _, _, sentence in CASES])
def test_symptoms_give_a_sentence_by_one_rule(rule: str, symptoms: Symptoms, sentence: str) -> None:
    assert str(cause_of(symptoms)) == sentence
    assert [found.name for found in RULES if found.sentence(symptoms)] == [rule]


@pytest.mark.parametrize(
    ("xid", "rule"),
    [
        *((xid, "memory") for xid in (48, 63, 64, 92, 94, 95)),
        *((xid, "lost") for xid in (79, 119, 120)),
        (74, "NVLink"),
        *((xid, "unknown") for xid in (13, 31, 43, 45)),  # those of the program's own errors
    ],
)
def test_an_xid_of_failing_hardware_is_a_cause(xid: int, rule: str) -> None:
    assert cause_of(Symptoms(10, HEALTHY, xids=(xid,))).kind == rule


@pytest.mark.parametrize(("limit_w", "rule"), [(0.0, "unknown"), (685.9, "lowered power limit"), (686.0, "unknown")])
def test_a_power_limit_that_is_2_percent_below_the_default_is_rounding(limit_w: float, rule: str) -> None:
    assert cause_of(Symptoms(10, HEALTHY | {"power_limit_w": limit_w})).kind == rule


@pytest.mark.parametrize(
    ("pids", "named"), [((1, 2, 3), "process 1, 2, 3 of"), ((1, 2, 3, 4), "process 1, 2, 3, ... of")]
)
def test_three_neighbours_are_named(pids: tuple[int, ...], named: str) -> None:
    assert named in str(cause_of(Symptoms(10, HEALTHY, foreign_pids=pids)))


def test_a_cause_comes_back_from_its_tag() -> None:
    cause = Cause("cooling", "cooling: hot")
    assert Cause.of_tags({"cause": cause.to_tag()}) == cause
    assert Cause.of_tags({}) == UNKNOWN
    assert (cause.is_known, UNKNOWN.is_known) == (True, False)


def test_every_rule_is_among_the_cases_and_names_its_source() -> None:
    assert {rule.name for rule in RULES} == {name for name, _, _ in CASES}
    assert all(rule.source.startswith("NVIDIA, ") for rule in RULES)


@pytest.mark.parametrize(
    "symptoms", [Symptoms(10), Symptoms(10, HEALTHY), Symptoms(0, HEALTHY, {"held_by_heat_ns": 5})]
)
def test_a_healthy_device_and_one_without_readings_have_no_cause(symptoms: Symptoms) -> None:
    assert cause_of(symptoms) == UNKNOWN


def test_a_clock_held_back_for_a_moment_explains_nothing() -> None:
    assert cause_of(Symptoms(10, HEALTHY, {"held_by_heat_ns": 0.4 * SECOND_NS})) == UNKNOWN


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("held_by_heat_ns", "cooling: the clock was held back by heat for 5% of the round, at 64 °C"),
        ("held_by_power_brake_ns", "power supply: the power brake was on for 5% of the round"),
        ("held_by_power_cap_ns", "power cap: the clock was held back for 5% of the round, at 690 W"),
    ],
)
def test_a_clock_held_back_for_a_twentieth_of_the_time_explains_a_slowdown(name: str, begin: str) -> None:
    assert str(cause_of(Symptoms(10, HEALTHY, {name: 0.5 * SECOND_NS}))) == begin
    assert cause_of(Symptoms(10, HEALTHY, {name: 0.499 * SECOND_NS})) == UNKNOWN


def test_without_a_temperature_or_power_the_sentence_ends_early() -> None:
    heat, cap = {"held_by_heat_ns": SECOND_NS}, {"held_by_power_cap_ns": SECOND_NS}

    assert str(cause_of(Symptoms(10, {}, heat))) == "cooling: the clock was held back by heat for 10% of the round"
    assert str(cause_of(Symptoms(10, {}, cap))) == "power cap: the clock was held back for 10% of the round"


@pytest.mark.parametrize(
    ("rule", "numbers"), [("memory", (48, 63, 64, 92, 94, 95)), ("lost", (79, 119, 120)), ("NVLink", (74,))]
)
def test_the_driver_s_errors_are_those_of_the_rule_s_source(rule: str, numbers: tuple[int, ...]) -> None:
    """The numbers are those of NVIDIA's "XID Errors"; all others up to 200 explain nothing."""
    (found,) = [each for each in RULES if each.name == rule]

    assert tuple(xid for xid in range(200) if found.sentence(Symptoms(10, xids=(xid,)))) == numbers
    assert all(f"XID {xid}" in str(found.sentence(Symptoms(10, xids=(xid,)))) for xid in numbers)


@pytest.mark.parametrize(
    ("risen", "xids", "sentence"),
    [
        ({"ecc_uncorrected": 2, "ecc_corrected": 5}, (), "memory: 2 uncorrectable ECC errors during the round"),
        ({"ecc_uncorrected": 2}, (95, 48), "memory: the driver reported XID 48"),
        (
            {"nvlink_crc_errors": 3, "nvlink_replays": 0, "nvlink_recoveries": 1},
            (),
            "NVLink: 1 recoveries, 3 CRC errors during the round",
        ),
    ],
)
def test_the_worst_of_several_symptoms_is_reported(
    risen: dict[str, float], xids: tuple[int, ...], sentence: str
) -> None:
    assert str(cause_of(Symptoms(10, HEALTHY, risen, xids=xids))) == sentence


def test_pages_that_are_retiring_wait_for_a_reset_too() -> None:
    assert str(cause_of(Symptoms(10, {"pages_retiring": 1}))) == "memory: a repair is pending until the GPU is reset"


@pytest.mark.parametrize(
    ("limit_w", "default_w", "found"), [(685, 700, True), (686, 700, False), (0, 700, False), (1, 700, True)]
)
def test_a_power_limit_below_98_percent_of_the_boards_own_was_lowered(
    limit_w: float, default_w: float, found: bool
) -> None:
    symptoms = Symptoms(10, {"power_limit_w": limit_w, "power_limit_default_w": default_w})

    assert (cause_of(symptoms) != UNKNOWN) == found


@pytest.mark.parametrize(
    "now",
    [
        {"power_limit_w": 0.5},
        {"power_limit_default_w": 700.0},
        {"pcie_width": 0.5},
        {"pcie_width_max": 16.0},
        {"pcie_generation": 0.5},
        {"pcie_generation_max": 5.0},
        {"pcie_width": 0.0, "pcie_width_max": 16.0},
    ],
)
def test_half_of_a_comparison_explains_nothing(now: dict[str, float]) -> None:
    assert cause_of(Symptoms(10, now)) == UNKNOWN


@pytest.mark.parametrize(
    ("pids", "shown"), [((1, 2, 3), "process 1, 2, 3 of"), ((1, 2, 3, 4), "process 1, 2, 3, ... of")]
)
def test_three_neighbours_are_named_and_more_are_elided(pids: tuple[int, ...], shown: str) -> None:
    assert shown in str(cause_of(Symptoms(10, HEALTHY, foreign_pids=pids)))


def test_a_broken_part_is_reported_before_a_hot_one_and_a_neighbour() -> None:
    everything = Symptoms(10, HEALTHY | {"remap_pending": 1}, {"held_by_heat_ns": 9 * SECOND_NS}, foreign_pids=(1,))

    assert str(cause_of(everything)).startswith("memory")
    assert str(cause_of(Symptoms(10, HEALTHY, everything.risen, foreign_pids=(1,)))).startswith("cooling")


def test_what_has_risen_is_the_difference_of_counters_that_both_readings_have() -> None:
    before = DeviceStatus(5.0, {"held_by_heat_ns": 100.0, "ecc_corrected": 3.0, "temperature_c": 50.0})
    after = DeviceStatus(
        7.0, {"held_by_heat_ns": 160.0, "pcie_replays": 9.0, "temperature_c": 70.0}, frozenset({9, 4, os.getpid()})
    )

    found = Symptoms.between(before, after, lambda pid: pid == os.getpid())

    assert found.seconds == 2.0
    assert found.risen == {"held_by_heat_ns": 60.0}
    assert found.now["temperature_c"] == 70.0
    assert found.foreign_pids == (4, 9)


def test_the_guide_lists_the_rules_in_their_order() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "probes.md").read_text()
    table = guide.partition("| rule |")[2].partition("\n\n")[0]

    assert re.findall(r"^\| ([A-Za-z ]+?) \|", table, re.MULTILINE) == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("model", "n_links", "down", "missing"),
    [
        ("NVIDIA A100 80GB PCIe", 0, (), ()),
        ("NVIDIA A100 80GB PCIe", 12, (), ()),
        ("NVIDIA A100 80GB PCIe", 12, (4, 5, 6, 7, 8, 9, 10, 11), ()),  # a board with one of its three bridges
        ("NVIDIA A100 80GB PCIe", 12, tuple(range(12)), ()),  # and one without any
        ("NVIDIA A100 80GB PCIe", 12, (5,), (5,)),
        ("NVIDIA A100 80GB PCIe", 12, (5, 8, 9, 10, 11), (5, 8, 9, 10, 11)),
        ("NVIDIA A100-SXM4-80GB", 12, (4, 5, 6, 7), (4, 5, 6, 7)),  # these lead to the baseboard
        ("NVIDIA A100-SXM4-80GB", 12, tuple(range(12)), ()),  # switched off, as with MIG
        ("NVIDIA H100 80GB HBM3", 18, (3, 7), (3, 7)),
        ("NVIDIA H100 80GB HBM3", 18, (0, 1, 2, 3), (0, 1, 2, 3)),  # eighteen links are no bridges
        ("NVIDIA H200 NVL", 18, tuple(range(18)), ()),
        ("", 2, (1,), (1,)),
    ],
)
def test_links_of_bridges_that_are_not_there_are_no_fault(
    model: str, n_links: int, down: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    assert missing_links([link not in down for link in range(n_links)], model) == missing
