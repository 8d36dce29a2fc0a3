"""Which GPUs are missed, and where a fault of a board is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laggard.collectors import boards as reading
from laggard.collectors.boards import Board, Boards
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.collectors.faults import faults_of
from laggard.detectors.judging.inventory import Inventory, inventoried, with_faults
from laggard.resilience.command.past_checks import PastChecks, PastReadingsError, read_past, update_past

KNOWN: Inventory = {"node1": {"GPU-0": {"name": "A100", "links": 12}, "GPU-1": {"name": "A100", "links": 0}}}


def listed(*uuids: str, is_all: bool = True, n_links: int | None = 12) -> Boards:
    return Boards(tuple(Board("A100", uuid, n_links) for uuid in uuids), is_all)


def faults_with(
    boards: Boards, checks: Mapping[tuple[str, str], DeviceCheck] | None = None, expected: int = 0
) -> dict[str, tuple[str, ...]]:
    found = with_faults(checks or {}, {"node1": boards}, KNOWN, expected)
    return {gpu: check.faults for (_, gpu), check in found.items()}


def test_a_board_that_is_not_listed_any_more_is_missed_if_all_are_listed() -> None:
    assert faults_with(listed("GPU-0", "GPU-1")) == {}
    ((gone,),) = faults_with(listed("GPU-0")).values()
    assert gone.startswith("GPU-1 (A100) was here at an earlier check and is gone")
    assert faults_with(listed("GPU-0", is_all=False)) == {}


@pytest.mark.parametrize(("n_links", "is_fault"), [(12, False), (13, False), (None, False), (8, True), (0, True)])
def test_links_that_were_active_before_are_missed_unless_their_state_is_unknown(
    n_links: int | None, is_fault: bool
) -> None:
    assert bool(faults_with(listed("GPU-0", "GPU-1", n_links=n_links))) == is_fault


def test_a_fault_of_a_board_is_shown_with_its_devices_or_else_with_its_machine() -> None:
    faulty = Boards((Board("A100 at 01", "GPU-9", faults=("broken",)),))
    slices = {("node1", gpu): DeviceCheck(gpu, board="GPU-9", faults=("narrow",)) for gpu in "01"}
    assert faults_with(faulty, slices) == {"0": ("broken", "narrow"), "1": ("broken", "narrow")}
    assert faults_with(faulty) == {ALL_DEVICES: ("A100 at 01: broken",)}
    assert faults_with(Boards((Board("the driver", faults=("no answer",)),))) == {
        ALL_DEVICES: ("the driver: no answer",)
    }


def test_fewer_devices_than_expected_are_a_fault_unless_their_machine_gave_no_answer() -> None:
    one = {("node1", "0"): DeviceCheck("0")}
    assert faults_with(Boards(), one, expected=2)[ALL_DEVICES] == ("1 of 2 expected devices are there",)
    silent = {("node1", ALL_DEVICES): DeviceCheck(ALL_DEVICES, trouble="no answer")}
    assert faults_with(Boards(), silent, expected=2) == {ALL_DEVICES: ()}


def test_a_report_that_cannot_be_read_is_no_fault() -> None:
    found = with_faults({}, {"node1": Boards(failure="a bug")}, {})["node1", ALL_DEVICES]
    assert (found.faults, found.failure) == ((), "a bug")


def test_what_is_gone_stays_in_the_inventory_and_what_has_moved_does_not() -> None:
    assert inventoried(KNOWN, {"node1": listed("GPU-0", n_links=4)}) == KNOWN
    moved = inventoried(KNOWN, {"node2": listed("GPU-1", n_links=None)})
    assert {host: list(known) for host, known in moved.items()} == {"node1": ["GPU-0"], "node2": ["GPU-1"]}
    assert inventoried({}, {"node1": Boards((Board("not to be opened"),))}) == {}


def test_two_doctors_that_share_a_file_lose_nothing_of_one_another(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "devices.json"

    def with_node(name: str) -> PastChecks:
        return PastChecks(inventory={**read_past(path).inventory, name: {}})

    def change(past: PastChecks) -> PastChecks:
        return PastChecks(past.readings, {**past.inventory, "node2": {"GPU-2": {"name": "", "links": 0}}})

    update_past(path, lambda _: with_node("node1"))
    update_past(path, change)
    assert set(read_past(path).inventory) == {"node1", "node2"}
    assert [file.stat().st_mode & 0o077 for file in path.parent.iterdir()] == [0, 0]


def test_a_file_of_an_earlier_version_has_no_inventory_and_nonsense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps({"laggard-devices-1": {"GPU-0": {"clock": [1.0]}}}))
    assert read_past(path) == PastChecks({"GPU-0": {"clock": [1.0]}}, {})
    path.write_text("[1]")
    with pytest.raises(PastReadingsError, match="remove it, or name another with --past"):
        read_past(path)


def test_a_healthy_board_and_one_that_reports_nothing_have_no_fault() -> None:
    assert faults_of({"remap_failed": 0.0, "remap_pending": 0.0, "ecc_uncorrected": 0.0}, ()) == ()
    assert faults_of({}, ()) == ()
    assert len(faults_of({"remap_failed": 1.0, "ecc_uncorrected": 3.0}, (2,))) == 3


def test_the_boards_are_all_unless_some_are_hidden_or_none_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 0)

    def is_all(environ: Mapping[str, str]) -> Any:
        reading.main(environ, tmp_path, driver)
        return json.loads(capsys.readouterr().out)[1]

    assert is_all({})
    assert not is_all({"CUDA_VISIBLE_DEVICES": ""})
    slot = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    slot.mkdir(parents=True)
    (slot / "vendor").write_text("0x10de\n")
    (slot / "class").write_text("0x030200\n")
    assert not is_all({})  # the bus has one more than the driver shows, as in a container
