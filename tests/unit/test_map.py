"""The signs of the map in ``laggard top``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.views.map import CELL, Colouring, colourings, map_columns
from laggard.resilience.views.signs import legend
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceState
from laggard.resilience.views.tables import against_peers

POWER = DEVICE_READINGS[1]


@pytest.mark.parametrize(
    ("value", "sign"), [(100, "0"), (119, "0"), (121, "1"), (189, "4"), (200, "5"), (281, "9"), (300, "9"), (999, "9")]
)
def test_a_reading_is_a_digit_for_its_tenth_of_the_scale(value: float, sign: str) -> None:
    device = DeviceState("n1", "0", "H100", "in use", {POWER.name: value})
    assert Colouring(POWER, low=100, high=300).sign_of(device) == sign


def test_a_scale_without_a_width_has_one_digit() -> None:
    device = DeviceState("n1", "0", "H100", "in use", {POWER.name: 5.0})
    assert Colouring(POWER, low=5, high=5).sign_of(device) == "0"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.5, "50 % faster than its peers"),
        (0.9949, "1 % faster than its peers"),
        (0.9951, "as fast as its peers"),
        (1.0049, "as fast as its peers"),
        (1.0051, "1 % slower than its peers"),
        (2.99, "199 % slower than its peers"),
        (3.0, "3.0 times as slow as its peers"),
    ],
)
def test_a_difference_that_rounds_to_no_percent_is_none_and_from_three_times_on_it_is_a_factor(
    ratio: float, text: str
) -> None:
    assert against_peers(ratio) == text


def test_the_map_can_be_coloured_by_what_some_device_has_and_percentages_go_to_100() -> None:
    percent = next(each for each in DEVICE_READINGS if each.unit == "%")
    probed = DeviceState("n1", "0", "H100", "in use", {}, peer_ratio=1.0)
    read = [DeviceState("n1", gpu, "H100", "in use", {POWER.name: watts}) for gpu, watts in (("1", 90.0), ("2", 310.0))]
    busy = DeviceState("n2", "0", "H100", "in use", {percent.name: 40.0})
    scales = [(each.reading, each.low, each.high) for each in colourings([probed, *read, busy])]
    assert sorted(scales, key=str) == sorted([(None, 0, 100), (POWER, 90, 310), (percent, 0, 100)], key=str)
    assert [each.reading for each in colourings(read)] == [POWER]
    assert [each.reading for each in colourings([])] == [None]


@pytest.mark.parametrize(
    ("signs", "special"), [("0@", {}), ("X/", {"X": "found slow", "/": "not in use"}), ("?", {"?": "no reading"})]
)
def test_only_the_special_signs_that_are_on_the_map_are_explained(signs: str, special: dict[str, str]) -> None:
    found = Colouring(POWER, low=100, high=1300).meanings(signs)
    assert found == {"0": f"100 {POWER.unit} to", "9": f"1,300 {POWER.unit}"} | special


@given(st.lists(st.integers(1, 9), min_size=1, max_size=80), st.integers(34, 250))
def test_every_device_has_one_place_on_the_map_beside_its_node_within_the_width(counts: list[int], width: int) -> None:
    devices = [
        DeviceState(f"n{node}", str(gpu), "", "in use", {}, peer_ratio=1.0)
        for node, count in enumerate(counts)
        for gpu in range(count)
    ]
    columns = map_columns(devices, Colouring(), width)
    assert sum(column.width for column in columns) <= width
    rows = list(zip(*(column.cells for column in columns), strict=True))
    assert sorted(cell.name for row in rows for cell in row if cell.text == " ·") == sorted(
        each.name for each in devices
    )
    for row in rows:
        labels = {cell.text.strip() for cell in row if len(cell.text) > CELL} - {""}
        assert not labels or {cell.name.split()[0] for cell in row if cell.text == " ·"} == labels


def test_the_map_of_no_devices_is_empty_and_a_long_name_is_cut() -> None:
    assert map_columns([], Colouring(), 80) == []
    (long, *_) = map_columns([DeviceState("n" * 40, "0", "", "in use", {})], Colouring(), 80)
    assert long.cells[0].text.strip() == "n" * 19 + "…"


@pytest.mark.parametrize("width", [20, 36, 60, 200])
def test_the_legend_takes_as_many_lines_as_it_needs(width: int) -> None:
    meanings = Colouring().meanings("X")
    shown = [line.plain for line in legend(meanings, width)]
    assert all(any(f" {sign}  {meaning}" in line for line in shown) for sign, meaning in meanings.items())
    assert all(len(line) <= max(width, len(" @  as its peers  ")) for line in shown)
