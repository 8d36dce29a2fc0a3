"""Symptoms read through the real binding from a test driver library, and their causes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0

READ = """
import json, sys
from dataclasses import asdict
from laggard.collectors.causes import cause_of
from laggard.collectors.symptoms import Symptoms, SymptomReader, board_power_limit_w
reader = SymptomReader(sys.argv[1])
before = reader.status()
after = reader.status(bus_in_use=True)
symptoms = Symptoms.between(before, after, lambda pid: sys.argv[2] == "ours")
print(json.dumps([asdict(symptoms), str(cause_of(symptoms)), board_power_limit_w(sys.argv[1]), reader.utilisation()]))
"""


def symptoms_of(library: Path, gpu: str, whose: str = "ours", **settings: str) -> tuple[dict[str, Any], str, float]:
    symptoms, cause, limit_w, _ = read(library, gpu, whose, **settings)
    return symptoms, cause, limit_w


def read(library: Path, gpu: str, whose: str, **settings: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", READ, gpu, whose],
        env={"LD_LIBRARY_PATH": str(library), "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_how_busy_a_device_is_is_read_in_percent(fake_nvml: Path) -> None:
    assert [read(fake_nvml, gpu, "ours")[-1] for gpu in ("0", "1")] == [50, 51]


def test_a_healthy_device_has_readings_and_no_cause(fake_nvml: Path) -> None:
    symptoms, cause, limit_w = symptoms_of(fake_nvml, "1")

    assert cause == "unknown"
    assert limit_w == 700
    assert symptoms["now"]["sm_clock_mhz"] == symptoms["now"]["sm_clock_max_mhz"] == 1980
    assert symptoms["now"]["power_w"] == pytest.approx(300.501)
    assert symptoms["risen"] == {"held_by_heat_ns": 0}
    assert not {"ecc_corrected", "pcie_generation"} & symptoms["now"].keys()


@pytest.mark.parametrize(
    ("setting", "value", "cause"),
    [
        ("FAKE_NVML_HOT", "1", r"cooling: the clock was held back by heat for \d+% of the round, at 60 °C"),
        ("FAKE_NVML_CAP", "1", "power cap: the limit was set to 400 W, the board's default is 700 W"),
        ("FAKE_NVML_SLOT", "1", "PCIe: the link's width is 8, but 16 is possible"),
        ("FAKE_NVML_LINK", "1", "NVLink: link 1 is down"),
        ("FAKE_NVML_XID", "94", "memory: the driver reported XID 94"),
    ],
)
def test_a_fault_of_one_device_is_not_a_cause_for_the_other(
    fake_nvml: Path, setting: str, value: str, cause: str
) -> None:
    assert re.fullmatch(cause, symptoms_of(fake_nvml, "1", **{setting: value})[1])
    assert symptoms_of(fake_nvml, "0", **{setting: value})[1] == "unknown"


def test_another_jobs_process_is_a_neighbour(fake_nvml: Path) -> None:
    symptoms, cause, _ = symptoms_of(fake_nvml, "0000:00:00.0", whose="theirs")

    assert symptoms["foreign_pids"] == [4321]
    assert cause == "a neighbour: process 4321 of another job runs on the device; the hardware is not to blame"


def test_a_device_is_found_by_its_address_on_the_bus(fake_nvml: Path) -> None:
    assert symptoms_of(fake_nvml, "0000:01:00.0")[0]["now"]["power_w"] == pytest.approx(300.501)


def test_an_old_driver_reports_less(fake_nvml: Path) -> None:
    symptoms, cause, _ = symptoms_of(fake_nvml, "0", FAKE_NVML_OLD="1")

    assert symptoms["risen"] == {}
    assert cause == "unknown"
