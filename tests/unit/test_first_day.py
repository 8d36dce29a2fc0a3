"""The first day on a GPU: how its time is divided, what its parts print and expect, and where its tables go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import first_day, first_day_parts
from benchmarks.first_day import PARTS, Budget, Part, with_section
from benchmarks.first_day_parts import Bench, environment, graphs, probes_alone
from laggard.collectors.device import GpuDevice, VirtualDevice
from laggard.collectors.probes import probes_of
from laggard.collectors.symptoms import Snapshot
from tests.fake_cupy.kernels import host_compiler
from tests.fake_cupy.machine import Board, Speed, cupy_on

MakeBench = Callable[..., Bench]
ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
# What a machine with a GPU may lack: all but CuPy, NumPy, psutil, nvidia-ml-py and tqdm.
MISSING = (
    *("click", "cryptography", "hypothesis", "matplotlib", "msgspec", "orjson", "pandas", "pydantic", "pytest", "ray"),
    *("redis", "rich", "scipy", "starlette", "torch", "uvicorn", "yaml"),
)


def test_it_loads_with_nothing_but_what_the_probes_need() -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({MISSING!r})); import benchmarks.first_day"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_a_part_does_not_use_goes_to_the_later_ones() -> None:
    clock = Clock()
    budget = Budget(100.0, [1, 1, 2], clock)
    assert budget.seconds_for(0) == pytest.approx(25.0)
    clock.now_s += 10.0
    assert budget.seconds_for(1) == pytest.approx(30.0)
    clock.now_s += 60.0  # twice as long as it should
    assert budget.seconds_for(2) == pytest.approx(30.0)
    clock.now_s += 30.5
    assert budget.seconds_for(2) == 0.0


def test_each_part_has_a_share_and_a_page() -> None:
    assert sum(part.weight for part in PARTS) == 100
    assert {part.page for part in PARTS} == {"probes.md", "intrusion.md"}
    assert all((first_day.DOCS / part.page).exists() for part in PARTS)


def refuse(_: Bench, __: float) -> None:
    print("| a | table |")
    raise OSError("no such driver")


def test_a_part_that_fails_says_why_after_what_it_has_printed(tmp_path: Path) -> None:
    bench = Bench([VirtualDevice("0", tmp_path)], {})
    failed = first_day._run(Part("A part", 1, refuse), bench, 1.0)
    assert failed.lines == ["## A part", "", "| a | table |", "", "Failed: OSError: no such driver", ""]
    left_out = first_day._run(Part("A part", 1, refuse), bench, 0.0)
    assert left_out.lines == ["## A part", "", "Left out: the time was over.", ""]


PAGE = "# Probes\n\nText.\n\n## The first day on X\n\nold\n\n### Old\n\n## What follows\n\nMore.\n"


def test_the_tables_of_a_device_replace_its_last_ones_and_nothing_else() -> None:
    expected = "# Probes\n\nText.\n\n## The first day on X\n\nnew\n\n## What follows\n\nMore.\n"
    assert with_section(PAGE, "The first day on X", ["new", ""]) == expected
    assert with_section(expected, "The first day on X", ["new", ""]) == expected


def test_the_tables_of_a_new_device_come_last() -> None:
    added = with_section(PAGE, "The first day on Y", ["new"])
    assert added == PAGE + "\n## The first day on Y\n\nnew\n"
    assert with_section(added, "The first day on Y", ["newer"]) == PAGE + "\n## The first day on Y\n\nnewer\n"


def test_the_environment_names_what_is_missing_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_day_parts, "PACKAGES", ("redis", "tqdm"))
    monkeypatch.setitem(sys.modules, "redis", None)
    environment(Bench([VirtualDevice("0", tmp_path)], {}), 1.0)
    printed = capsys.readouterr().out.splitlines()
    (redis,) = (line for line in printed if line.startswith("| redis |"))
    assert redis.startswith("| redis | MISSING: ModuleNotFoundError: ")
    assert "| tqdm | MISSING" not in "\n".join(printed)


@pytest.fixture
def bench_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBench]:
    """Return a function that makes a bench of one board."""
    if host_compiler() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(first_day_parts, "WARM_UP_S", 0.0)
    opened = []

    def make(board: Board, *names: str) -> Bench:
        opened.append(cupy_on(board))
        opened[-1].__enter__()
        bench = Bench([GpuDevice("0", 0)], {})
        monkeypatch.setitem(vars(bench), "probes", probes_of(bench.device, names))
        return bench

    yield make
    for each in opened:
        each.__exit__(None, None, None)


# The peaks of each precision differ; these boards have one rate for all.
def test_probes_near_the_peak_are_as_expected_and_others_are_named(
    bench_of: MakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = bench_of(Board(speed=Speed(flop_s=60e12, memory_bytes_s=0.5e12)), "gemm_fp32", "gemm_fp16", "triad")
    probes_alone(bench, 0.0)  # one repeat of each
    holds = {name: ok for name, ok, _ in bench.checks}
    assert holds["gemm_fp32 within 0.3 and 1.1 of the peak"]
    assert not holds["gemm_fp16 within 0.3 and 1.1 of the peak"]  # it has the rate of single precision
    assert not holds["triad within 0.3 and 1.1 of the peak"]
    assert all(holds[f"{name} computes correctly"] for name in ("gemm_fp32", "gemm_fp16", "triad"))
    printed = capsys.readouterr().out
    assert "| gemm_fp32 | 1 | 60 | Tflop/s | 0.0% | 0.90 | 0 | 0 |" in printed
    assert "of the device's memory" in printed


def test_wrong_results_are_found_as_a_graph_and_one_by_one(bench_of: MakeBench) -> None:
    board = Board()
    bench = bench_of(board, "gemm_tf32", "triad")
    board.wrong_by = 1.0
    probes_alone(bench, 0.0)
    graphs(bench, 0.0)
    holds = {name: ok for name, ok, _ in bench.checks}
    assert not holds["gemm_tf32 computes correctly"]
    assert not holds["gemm_tf32 as a graph computes correctly"]
    assert holds["gemm_tf32 is captured as a graph"]
    assert holds["triad as a graph computes correctly"]


@pytest.mark.parametrize(("reported_mhz", "agrees"), [(1980.0, True), (1950.0, True), (1500.0, False)])
def test_the_clock_probe_is_compared_with_what_the_driver_reports(
    bench_of: MakeBench, monkeypatch: pytest.MonkeyPatch, reported_mhz: float, agrees: bool
) -> None:
    reader = SimpleNamespace(snapshot=lambda: Snapshot(0.0, {"sm_clock_mhz": reported_mhz}))
    monkeypatch.setattr(first_day_parts, "symptom_reader", lambda _: reader)
    monkeypatch.setattr(first_day_parts, "CLOCK_READINGS", 2)
    bench = bench_of(Board(speed=Speed(clocks_hz=(1.98e9,))), "clock")
    probes_alone(bench, 0.0)
    assert bench.checks[-1][:2] == ("the clock probe agrees with NVML within 2 %", agrees)


def test_what_cannot_be_captured_is_named(
    bench_of: MakeBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GpuDevice, "captured", refuse_capture)
    bench = bench_of(Board(), "triad")
    graphs(bench, 0.0)
    assert not any(ok for name, ok, _ in bench.checks if name.endswith("is captured as a graph"))
    assert "| triad | NO | " in capsys.readouterr().out


def refuse_capture(*_: object) -> None:
    raise RuntimeError("not here")
