"""The probes of a GPU, on a stand-in for CuPy that checks each call and computes what a GPU would."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest

from laggard.collectors.device import GpuDevice, Timing, device_makers, gpu_names, local_device
from laggard.collectors.device_check import DeviceCheck, check_device
from laggard.collectors.errors import CupyMissingError, DeviceError, ProbeUnavailableError
from laggard.collectors.probes import PROBE_NAMES, Probe, probes_of
from laggard.collectors.probes.cuda_kernels import KERNELS
from laggard.collectors.probes.gpu import CHASED_BYTES, COPY_BYTES, LINE_BYTES, Chase, KernelLaunch
from laggard.collectors.probes.workspace import MIB
from laggard.collectors.probing import Probing
from laggard.collectors.slow_gpu_collector import SlowGPU
from laggard.detectors import SlowGPUAnalysis
from tests.fake_cupy.kernels import host_compiler, on_host
from tests.fake_cupy.machine import Board, CUDARuntimeError, Speed, cupy_on, no_cupy

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="there is no C++ compiler")

GEMMS = [name for name in PROBE_NAMES if name.startswith("gemm")]
CHASES = ["chase_l2", "chase_memory"]
ALL_BUT_240_MIB = (80 << 30) - 240 * MIB
# Multiprocessors of three frequencies: the median is neither the first nor the mean.
CLOCKS_HZ = (1.98e9, 1.2e9, 1.5e9)


@dataclass(frozen=True)
class Bench:
    """The second of two GPUs, with all its probes."""

    neighbour: Board
    board: Board
    device: GpuDevice
    probes: dict[str, Probe]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    boards = Board(peers=frozenset({1})), Board(peers=frozenset({0}), speed=Speed(clocks_hz=CLOCKS_HZ))
    with cupy_on(*boards):
        device = GpuDevice("1", 1)
        yield Bench(*boards, device, {probe.name: probe for probe in probes_of(device)})


def figure_of(probe: Probe) -> float:
    probe.prepare()
    return probe.figure(probe.seconds())


@pytest.mark.parametrize(
    ("name", "figure", "unit"),
    [
        ("clock", 1.5, "GHz"),
        *((gemm, 60.0, "Tflop/s") for gemm in GEMMS),
        ("triad", 3000.0, "GB/s"),
        ("chase_l2", 200.0, "ns a read"),
        ("chase_memory", 600.0, "ns a read"),
        ("launch", 2.0, "us each"),
        ("device_to_host", 50.0, "GB/s"),
        ("host_to_device", 50.0, "GB/s"),
    ],
)
def test_each_probe_reports_the_figure_of_the_part_it_tests(bench: Bench, name: str, figure: float, unit: str) -> None:
    assert tuple(bench.probes) == PROBE_NAMES
    assert figure_of(bench.probes[name]) == pytest.approx(figure, rel=1e-6)
    assert bench.probes[name].unit == unit


def test_a_repeat_takes_about_a_millisecond_on_an_h100(bench: Bench) -> None:
    peaks = {"gemm_fp64": 67e12, "gemm_fp32": 67e12, "gemm_tf32": 495e12, "gemm_fp16": 990e12, "gemm_bf16": 990e12}
    rates = {"triad": 3.35e12, "device_to_host": 55e9, "host_to_device": 55e9}
    floors_s = {name: bench.probes[name].operations / peak for name, peak in peaks.items()}
    floors_s |= {name: bench.probes[name].bytes_moved / rate for name, rate in rates.items()}
    assert {name: round(floor_s * 1e3, 1) for name, floor_s in floors_s.items()} == {
        "gemm_fp64": 0.5,
        "gemm_fp32": 1.0,
        "gemm_tf32": 0.7,
        "gemm_fp16": 0.6,
        "gemm_bf16": 0.6,
        "triad": 0.8,
        "device_to_host": 0.6,
        "host_to_device": 0.6,
    }


def test_all_probes_of_a_device_take_less_than_256_mib_and_use_no_other(bench: Bench) -> None:
    for probe in bench.probes.values():
        probe.prepare()
        probe.wrong_results()
    assert bench.board.peak_bytes < 256 * MIB
    assert bench.neighbour.log == []


@pytest.mark.parametrize("name", ["clock", "gemm_fp64", "triad", "launch", "host_to_device"])
def test_a_reading_is_taken_in_a_stream_of_the_lowest_priority_that_waits_for_no_other(bench: Bench, name: str) -> None:
    bench.probes[name].prepare()
    begun = len(bench.board.log)
    bench.device.timed(bench.probes[name].kernel)
    streams = {work.stream for work in bench.board.log[begun:]}
    assert [(stream.priority, stream.is_non_blocking, stream.device_id) for stream in streams] == [(0, True, 1)]


@pytest.mark.parametrize("name", GEMMS)
def test_one_wrong_number_in_a_product_of_any_precision_is_seen(bench: Bench, name: str) -> None:
    probe = bench.probes[name]
    probe.prepare()
    with bench.board.having(wrong_by=1.0):
        probe.seconds()
        assert probe.wrong_results() == 1
    probe.seconds()
    assert probe.wrong_results() == 0


def test_the_triad_subtracts_half_of_what_it_had_and_a_wrong_difference_is_seen(bench: Bench) -> None:
    probe: Any = bench.probes["triad"]
    probe.prepare()
    probe.seconds()
    expected = np.float32(0)
    for _ in range(20):
        expected = np.float32(3) - expected / np.float32(2)
    assert (probe._a.host == expected).all()
    assert probe.wrong_results() == 0
    bench.device.run(lambda: probe._a[7:8].fill(9.0))
    assert probe.wrong_results() == 1


@pytest.mark.parametrize("name", CHASES)
def test_a_chase_reads_every_line_once_before_it_comes_back(bench: Bench, name: str) -> None:
    probe: Any = bench.probes[name]
    lines = probe._next.nbytes // LINE_BYTES
    reads = np.zeros(lines, np.uint32)
    kernels = on_host(KERNELS)
    begun_at = int(bench.device.run(lambda: probe._at[0]))
    ctypes.c_void_p.in_dll(kernels, "first_line").value = probe._next.data.ptr
    ctypes.c_void_p.in_dll(kernels, "reads_of_line").value = reads.ctypes.data
    try:
        for _ in range(lines // int(probe._hops)):
            probe.seconds()
    finally:
        ctypes.c_void_p.in_dll(kernels, "reads_of_line").value = None
    assert (reads == 1).all()
    assert int(bench.device.run(lambda: probe._at[0])) == begun_at


@pytest.mark.parametrize(("cache_mib", "chased_mib"), [(50, 8), (16, 8), (6, 2), (4, 2), (0, 8)])
def test_what_is_chased_in_the_cache_fits_into_it(cache_mib: int, chased_mib: int) -> None:
    with cupy_on(Board(cache_bytes=cache_mib * MIB)):
        (chase,) = probes_of(GpuDevice("0", 0), ["chase_l2"])
        assert isinstance(chase, Chase)
        assert chase._next.nbytes == chased_mib * MIB


def test_the_clock_is_the_same_while_another_kernel_takes_half_of_the_gpu(bench: Bench) -> None:
    alone = {name: bench.probes[name].seconds() for name in ("clock", "gemm_fp32")}
    with bench.board.having(speed=replace(bench.board.speed, share=2.0)):
        assert bench.probes["gemm_fp32"].seconds() == pytest.approx(2 * alone["gemm_fp32"])
        assert bench.probes["clock"].seconds() == pytest.approx(alone["clock"], rel=1e-6)


def test_the_host_sleeps_while_it_waits_for_the_device(bench: Bench) -> None:
    """By default it would spin, on a processor that the program needs."""
    bench.device.run(lambda: None)
    bench.probes["triad"].seconds()
    assert bench.board.events_that_sleep > 0
    assert bench.board.events_that_spin == 0


@pytest.mark.parametrize("counted", [True, False], ids=["within the events", "before them"])
def test_a_wait_for_a_neighbours_slice_of_time_is_in_the_reading_wherever_it_falls(bench: Bench, counted: bool) -> None:
    probe = bench.probes["gemm_fp32"]
    alone_s = probe.seconds()
    with bench.board.having(wait_s=0.002, events_count_waiting=counted):
        assert probe.seconds() == pytest.approx(alone_s + 0.002)
    assert probe.timing.wall_s == pytest.approx(alone_s + 0.002)
    assert probe.timing.device_s == pytest.approx(alone_s + 0.002 * counted)
    assert probe.timing.waited is not counted


@pytest.mark.parametrize("counted", [True, False], ids=["within the events", "before them"])
def test_a_device_with_a_busy_neighbour_is_found_wherever_its_waiting_falls(counted: bool) -> None:
    boards = [Board() for _ in range(4)]
    with cupy_on(*boards):
        probings = [Probing(GpuDevice(str(number), number), max_intrusion=1.0) for number in range(4)]
        analysis = SlowGPUAnalysis(min_slowdown=1.05)
        verdicts = []
        for number in range(24):
            boards[2].wait_s = 0.002 if number >= 12 else 0.0
            boards[2].events_count_waiting = counted
            readings = {
                (f"node{gpu}", "0"): [probing.product.seconds() * (1 + 1e-3 * ((number + gpu) % 3)) for _ in range(3)]
                for gpu, probing in enumerate(probings)
            }
            verdicts += analysis.update(readings)
        for probing in probings:
            probing.seconds()
        tags = [probing.tags() for probing in probings]
    assert {(verdict.host, verdict.action) for verdict in verdicts} == {("node2", "restart")}
    assert [tag.get("waited") for tag in tags] == [None, None, None if counted else "yes", None]


@pytest.mark.parametrize(
    ("device_s", "wall_s", "waited"),
    [
        (1e-3, 1.2e-3, False),  # to submit it and to be woken
        (1e-3, 1.4e-3, False),
        (1e-3, 1.6e-3, True),
        (10e-3, 12e-3, False),  # less than a quarter
        (10e-3, 13e-3, True),
        (17e-6, 0.4e-3, False),
    ],
)
def test_a_short_delay_of_the_host_is_no_wait_for_the_device(device_s: float, wall_s: float, waited: bool) -> None:
    timing = Timing(device_s, wall_s)
    assert timing.waited is waited
    assert timing.seconds == (wall_s if waited else device_s)


@pytest.mark.parametrize(
    ("name", "cache_mib", "is_amd", "triad_mib", "chase_mib", "passes"),
    [
        ("NVIDIA A100-SXM4-80GB", 40, False, 80, 96, 20),
        ("NVIDIA H100 80GB HBM3", 50, False, 80, 96, 20),
        ("NVIDIA L40S", 96, False, 154, 154, 10),
        ("NVIDIA B200", 126, False, 202, 202, 8),
        ("AMD Instinct MI300X", 4, True, 410, 410, 4),
    ],
)
def test_what_is_read_from_memory_does_not_fit_into_the_last_cache(
    name: str, cache_mib: int, is_amd: bool, triad_mib: int, chase_mib: int, passes: int
) -> None:
    with cupy_on(Board(name=name, cache_bytes=cache_mib * MIB, is_amd=is_amd)):
        triad: Any
        (triad,) = probes_of(GpuDevice("0", 0), ["triad"])
        assert triad.name == "triad"
        assert triad._a.nbytes * 2 == triad_mib * MIB
        assert triad._passes == passes
        assert triad.workspace.beyond_cache(CHASED_BYTES) == chase_mib * MIB


def test_a_chase_through_memory_is_as_large_as_that() -> None:
    with cupy_on(Board(cache_bytes=96 * MIB)):
        chase: Any
        (chase,) = probes_of(GpuDevice("0", 0), ["chase_memory"])
        assert (chase.name, chase._next.nbytes) == ("chase_memory", 154 * MIB)


def test_copies_go_in_the_direction_of_their_name(bench: Bench) -> None:
    random = np.random.default_rng(3)
    down, up = (bench.probes[name] for name in ("host_to_device", "device_to_host"))
    numbers = random.integers(0, 255, (2, COPY_BYTES), np.uint8)
    ends: Any = down, up
    down_end, up_end = ends

    down_end._here.bytes[:] = numbers[0]
    down.seconds()
    assert np.array_equal(down_end._there.host, numbers[0])

    up_end._there.host[:] = numbers[1]
    up.seconds()
    assert np.array_equal(up_end._here.bytes, numbers[1])


@pytest.mark.parametrize(
    ("free_mib", "names"),
    [
        (90, ["clock", "triad_20MiB", "chase_l2", "launch"]),
        (165, ["clock", "gemm_fp64", "gemm_fp16", "gemm_bf16", "triad_40MiB", "chase_l2", "launch"]),
    ],
)
def test_where_memory_is_short_there_are_fewer_and_smaller_probes_whose_names_say_so(
    free_mib: int, names: list[str]
) -> None:
    board = Board(others_bytes=(80 << 30) - free_mib * MIB)
    with cupy_on(board):
        check = check_device(GpuDevice("0", 0), repeats=1)
    assert [name for name in check.seconds if not name.endswith(("host", "device"))] == names
    assert (check.trouble, check.wrong) == ("", {})


def test_where_memory_is_too_short_for_any_probe_the_check_says_so() -> None:
    with cupy_on(Board(others_bytes=(80 << 30) - 79 * MIB)):
        device = GpuDevice("0", 0)
        with pytest.raises(ProbeUnavailableError, match="gpu 0 has 79 MiB free: too little for probes"):
            probes_of(device)
        assert check_device(device) == DeviceCheck(
            "0", device.model, device.uuid, failure="gpu 0 has 79 MiB free: too little for probes"
        )


@pytest.mark.parametrize(("status", "is_left_out"), [(2, True), (46, False)])
def test_a_probe_for_which_cuda_itself_has_no_memory_is_left_out(
    monkeypatch: pytest.MonkeyPatch, status: int, *, is_left_out: bool
) -> None:
    def refuse(_: Probe) -> None:
        error = CUDARuntimeError(46)
        error.status = status
        raise error

    monkeypatch.setattr(KernelLaunch, "prepare", refuse)
    with cupy_on(Board()):
        if is_left_out:
            assert [probe.name for probe in probes_of(GpuDevice("0", 0), ["clock", "launch"])] == ["clock"]
        else:
            with pytest.raises(CUDARuntimeError):
                probes_of(GpuDevice("0", 0), ["clock", "launch"])


def test_a_board_with_next_to_no_double_precision_is_not_asked_for_it() -> None:
    with cupy_on(Board(doubles_ratio=64)):
        assert probes_of(GpuDevice("0", 0), ["gemm_fp64"]) == []


def test_an_amd_gpu_has_the_products_that_cupy_knows_there_and_they_are_right() -> None:
    with cupy_on(Board(name="AMD Instinct MI300X", is_amd=True)):
        probes = probes_of(GpuDevice("0", 0), ["clock", *GEMMS])
        assert [probe.name for probe in probes] == ["gemm_fp64", "gemm_fp32", "gemm_fp16"]
        for probe in probes:
            probe.prepare()
            probe.seconds()
            assert probe.wrong_results() == 0


def test_a_check_of_a_gpu_has_a_figure_of_each_probe_and_names_wrong_products(bench: Bench) -> None:
    with bench.board.having(wrong_by=1.0):
        check = check_device(bench.device, repeats=1)

    assert (check.gpu, check.model) == ("1", "NVIDIA H100 80GB HBM3, 80 GiB")
    assert check.uuid == "GPU-10111213-1415-1617-1819-1a1b1c1d1ec9"
    assert tuple(check.seconds) == tuple(check.figures) == PROBE_NAMES
    assert check.figures["gemm_fp32"][0] == pytest.approx(60.0)
    assert (check.wrong, check.trouble) == (dict.fromkeys(GEMMS, 1), "")


class OnTheBench(SlowGPU):
    """A collector whose test runs on one device."""

    tested: GpuDevice

    @property
    def device(self) -> GpuDevice:
        return self.tested


def test_the_detectors_test_is_the_product_in_single_precision_on_its_device(bench: Bench) -> None:
    collector = OnTheBench()
    collector.tested = bench.device
    begun = len(bench.neighbour.log)
    assert collector.collector_test(None) == pytest.approx(4 * 2 * 2048**3 / 60e12)
    assert len(bench.neighbour.log) == begun


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ({}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "5,7"}, ["5", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1234, GPU-5678"}, ["GPU-1234", "GPU-5678"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3,9"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3,-1,4"}, ["2", "3"]),  # CUDA stops at the first that is none
    ],
)
def test_gpus_have_the_names_by_which_they_were_made_visible(visible: dict[str, str], names: list[str]) -> None:
    with cupy_on(Board(), Board()):
        assert gpu_names(visible) == names
        assert [make().gpu for make in device_makers(visible).values()] == names
        assert local_device(visible).gpu == names[0]


def test_a_program_keeps_all_its_slices_of_which_a_process_sees_the_first() -> None:
    visible = {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    with cupy_on(Board()):
        assert gpu_names(visible) == ["MIG-1", "MIG-2"]
        assert list(device_makers(visible)) == ["MIG-1"]
    with cupy_on():
        assert gpu_names(visible) == []


def open_but_the_third(number: int) -> int:
    """Open a device, of which the third is another job's."""
    if number == 2:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    return number


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ({}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5,7"}, ["GPU-5", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2,MIG-3"}, ["MIG-1", "MIG-2", "MIG-3"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_without_cupy_the_driver_counts_the_gpus(visible: dict[str, str], names: list[str]) -> None:
    driver = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 3, nvmlDeviceGetHandleByIndex=open_but_the_third
    )
    with no_cupy():
        assert gpu_names(visible, driver) == names
        if names:
            with pytest.raises(CupyMissingError, match=r"laggard\[cuda12\]"):
                device_makers(visible, driver)[names[0]]()


def test_without_cupy_and_without_a_driver_there_is_no_gpu() -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with no_cupy():
        assert gpu_names({}, SimpleNamespace(nvmlInit=refuse)) == []


def test_cupy_without_a_gpu_finds_no_gpu() -> None:
    with cupy_on():
        assert gpu_names({}) == []
        with pytest.raises(DeviceError, match="no GPU here"):
            device_makers({})


def test_a_good_gpu_next_to_a_lost_one_is_used_and_its_probes_run() -> None:
    with cupy_on(Board(lost=True), Board(others_bytes=(80 << 30) - 90 * MIB)):
        lost, good = device_makers({}).values()
        assert check_device(good(), repeats=1).trouble == ""
        with pytest.raises(CUDARuntimeError, match="cudaErrorDevicesUnavailable"):
            lost()


def test_a_gpu_that_is_lost_under_its_probes_fails_them(bench: Bench) -> None:
    for probe in bench.probes.values():
        with bench.board.having(lost=True), pytest.raises(CUDARuntimeError, match="cudaErrorDevicesUnavailable"):
            probe.seconds()
