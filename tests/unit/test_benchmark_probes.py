"""The benchmark of the probes: its cells, floors and verdicts, and the neighbours that cause its faults."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.neighbour import ROOT, Neighbour, kinds_on
from benchmarks.peaks import PEAKS, floor_s, peaks_of
from benchmarks.probes import Repeats, Taken, cell, report_waits, verdicts_of
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES, GpuDevice, VirtualDevice
from laggard.collectors.probes import Probe
from tests.fake_cupy.machine import Board, cupy_on

DEADLINE_S = 60.0
ONLY_FOR_JOBS = ("click", "cryptography", "orjson", "ray", "rich", "scipy", "starlette", "yaml")


class Sized(Probe):
    """A probe of a given name and work."""

    def __init__(self, name: str, operations: float, bytes_moved: float) -> None:
        super().__init__(VirtualDevice("0", Path()))
        self.name, self.operations, self.bytes_moved = name, operations, bytes_moved

    def kernel(self) -> None:
        """Do nothing: it is never run."""


def rounds(count: int, slow_from: int) -> list[list[Repeats]]:
    """Return readings of four devices, the last of which becomes twice as slow."""
    return [
        [
            {"probe": [(2.0 if number >= slow_from and series == 3 else 1.0) + 0.001 * (number % 3)]}
            for series in range(4)
        ]
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (1.0, "1.00"),
        (1.02, "1.02"),  # within three spreads
        (1.1, "1.10 !"),
        (1.5, "1.50 !"),
        (1.51, "1.51 !!"),
        (0.5, "0.50"),  # faster is no reaction
    ],
)
def test_a_cell_is_marked_by_how_far_the_median_lies_above_idle(fault: float, expected: str) -> None:
    idle = [1.0, 0.99, 1.01, 0.98, 1.02]  # the median's distance to the median is 0.01
    assert cell([fault, fault, 100.0], idle) == expected


def test_a_cell_does_not_depend_on_the_unit() -> None:
    idle, fault = [1.0, 1.1, 0.9], [1.7, 1.8, 1.9]
    assert cell([1e-3 * each for each in fault], [1e-3 * each for each in idle]) == cell(fault, idle)


def test_the_floor_is_the_work_divided_by_the_peak() -> None:
    peaks = {"gemm_fp32": 5e13, "triad": 2e12}
    assert floor_s(Sized("gemm_fp32", 1e11, 1e9), peaks) == pytest.approx(0.002)
    assert floor_s(Sized("triad", 1e11, 1e9), peaks) == pytest.approx(0.0005)
    assert floor_s(Sized("triad_40MiB", 1e11, 1e9), peaks) == pytest.approx(0.0005)


def test_there_is_no_floor_without_a_peak() -> None:
    assert floor_s(Sized("launch", 200, 0), PEAKS["NVIDIA H200"]) is None
    assert floor_s(Sized("gemm_fp32", 1e11, 0), {}) is None


def test_the_peaks_are_those_of_the_whole_board() -> None:
    assert peaks_of("NVIDIA H200, 140 GiB, 700 W")["triad"] == 4.8e12
    assert peaks_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb, 5 GiB") == {}
    assert peaks_of("virtual") == {}


@pytest.mark.parametrize("model", ["A100", "H100", "H200", "B200", "L40S", "MI300X"])
def test_the_peaks_of_a_board_are_in_the_order_that_physics_has_them(model: str) -> None:
    found = [peaks for name, peaks in PEAKS.items() if model in name]
    assert found
    for peaks in found:
        products = [peaks[f"gemm_{precision}"] for precision in ("fp64", "fp32", "tf32", "fp16")]
        assert products == sorted(products)
        assert peaks["gemm_fp16"] == peaks["gemm_bf16"]
        assert peaks["triad"] > peaks.get("peer_copy", 0) >= 0
        assert peaks["triad"] > 10 * peaks["host_to_device"]


def test_healthy_series_get_no_verdict_and_a_slow_one_gets_a_restart() -> None:
    assert verdicts_of(rounds(40, slow_from=40), "probe", 1.5) == []
    verdicts = verdicts_of(rounds(40, slow_from=20), "probe", 1.5)
    assert {(verdict.host, verdict.action) for verdict in verdicts} == {("node3", "restart")}


@pytest.mark.parametrize(
    ("device_s", "wall_s", "counted"),
    [(0.003, 0.0031, "100%"), (0.001, 0.0031, "0%"), (0.002, 0.0031, "50%"), (0.001, 0.0011, "-")],
)
def test_how_much_of_a_neighbour_the_events_count_is_told_by_both_clocks(
    device_s: float, wall_s: float, counted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    idle, busy = Taken(0.001, 0.001, 0.0011), Taken(wall_s, device_s, wall_s)
    with cupy_on(Board()):
        report_waits(GpuDevice("0", 0), {"gemm_fp32": {"idle": [idle], "compute": [busy]}})
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"| {counted} |")


def test_a_virtual_device_has_no_bus(tmp_path: Path) -> None:
    assert "bus" not in kinds_on(VirtualDevice("0", tmp_path))


@pytest.mark.parametrize("kind", ["compute", "memory"])
def test_a_neighbour_keeps_the_device_busy_only_while_it_is_at_work(tmp_path: Path, kind: str) -> None:
    device = VirtualDevice("0", tmp_path)
    device.run(lambda: None)
    clock = tmp_path / "device-0.clock"
    with Neighbour(kind, "0", {VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: str(tmp_path)}) as neighbour:
        for _ in range(2):
            with neighbour.at_work():
                begun, until_s = clock.read_bytes(), time.monotonic() + DEADLINE_S
                while clock.read_bytes() == begun:
                    assert time.monotonic() < until_s
            rested = clock.read_bytes()
            time.sleep(0.1)  # no activity for a while
            assert clock.read_bytes() == rested


@pytest.mark.parametrize("at_work", [False, True])
def test_a_neighbour_exits_when_its_input_is_closed(tmp_path: Path, at_work: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.neighbour", "processor", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: str(tmp_path)},
    ) as neighbour:
        assert neighbour.stdin is not None
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "ready\n"
        if at_work:
            neighbour.stdin.write("\n")
            neighbour.stdin.flush()
            assert neighbour.stdout.readline() == "busy\n"
        neighbour.stdin.close()
        assert neighbour.wait(DEADLINE_S) == 0


def test_a_neighbour_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="neighbour 'compute' answered '' instead of 'ready'"):
        Neighbour("compute", "7", {VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: str(tmp_path)})


def test_it_loads_without_packages_that_only_jobs_need() -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ONLY_FOR_JOBS!r}));"
        "import benchmarks.neighbour, benchmarks.probes"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
