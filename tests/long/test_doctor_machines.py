"""More machines that ``laggard doctor`` visits; the first of them are in tests/integration/test_doctor_machines.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.integration.test_doctor_machines import (  # noqa: F401 - two of them are fixtures
    A100,
    BRIDGES,
    H100,
    NOT_REMAPPED,
    SLICE,
    SOLDERED,
    See,
    Visit,
    look,
    mps_server,
    see,
)

TABLE: dict[str, Sequence[Visit]] = {
    "a repair that waits for a reset": [
        Visit([H100], 1, 0, ["gpu 0: memory: a repair is pending until the GPU is reset"], {"FAKE_NVML_PENDING": "0"})
    ],
    "uncorrectable errors": [
        Visit([H100], 1, 0, ["gpu 0: memory: 2 uncorrectable ECC errors since the driver"], {"FAKE_NVML_ECC": "0"})
    ],
    "a link that is down": [
        Visit([H100], 1, 0, ["gpu 0: NVLink: link 1 is down"], {**SOLDERED, "FAKE_NVML_LINK": "0"})
    ],
    "a bridge with a link that is down": [
        Visit([A100], 1, 0, ["gpu 0: NVLink: link 1 is down"], {**BRIDGES, "FAKE_NVML_LINK": "0"})
    ],
    "a narrow slot": [
        Visit([H100], 1, 0, ["gpu 0: PCIe: the link's width is 8, but 16 is possible"], {"FAKE_NVML_SLOT": "0"})
    ],
    "a slice of a faulty GPU": [
        Visit([SLICE], 1, 0, [f"gpu 0: {NOT_REMAPPED}"], {"FAKE_NVML_REMAP": "0", "FAKE_NVML_MIG": "1"})
    ],
    "all GPUs are gone": [
        Visit([H100], 0, 1),
        Visit([], 1, 0, ["machine: GPU-0 (NVIDIA H100 80GB HBM3 at 00000000:00:00.0) was here at an earlier check"]),
    ],
    "some GPUs are another job's": [
        Visit([H100] * 2, 0, 2),
        Visit([H100], 0, 1, nvml={"FAKE_NVML_HIDDEN": "1", "FAKE_NVML_COUNT": "2"}),
    ],
    "a fault of another job's GPU": [
        Visit([H100], 0, 1, nvml={"FAKE_NVML_COUNT": "2", "FAKE_NVML_REMAP": "1"}, visible="0"),
    ],
    "a bridge that was there": [
        Visit([A100], 0, 1, nvml=BRIDGES),
        Visit(
            [A100],
            1,
            0,
            ["gpu 0: NVLink: 4 links are active, 12 were at an earlier check"],
            {**BRIDGES, "FAKE_NVML_BRIDGED": "1"},
        ),
    ],
}


@pytest.mark.parametrize("visits", TABLE.values(), ids=TABLE)
def test_the_doctor_knows_more_faults_and_what_is_none(see: See, visits: Sequence[Visit]) -> None:  # noqa: F811
    look(see, visits)
