"""The examples refuse invalid values in one line that names the value and what to do."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import custom_detector
import merge_sort
import mini_telemetry
import pytest
import scipy_scale_work
import slow_gpu

from laggard import Job

EXAMPLES = Path(__file__).parents[2] / "examples"
# Without those of laggard.torch, which load whole frameworks for a while.
PROGRAMS = [
    path.relative_to(EXAMPLES).as_posix()
    for path in sorted(EXAMPLES.rglob("*.py"))
    if "def main()" in path.read_text() and "laggard.torch" not in path.read_text()
]


def scipy_arguments(arguments: list[str]) -> argparse.Namespace:
    return scipy_scale_work.parse_arguments("", arguments)


def full_arguments(arguments: list[str]) -> argparse.Namespace:
    pytest.importorskip("torch")
    import telemetry_full

    return telemetry_full.parse_arguments(arguments)


Parse = Callable[[list[str]], argparse.Namespace]


@pytest.mark.parametrize(
    ("parse", "arguments", "line"),
    [
        (scipy_arguments, "--num_workers -1", "--num_workers -1 is too small: give at least 1"),
        (scipy_arguments, "--burns -1", "--burns -1 is too small: give at least 0"),
        (scipy_arguments, "--work_time -0.5", "--work_time -0.5 is too small: give at least 0"),
        (
            scipy_arguments,
            "--size 2000 --mem 1000000",
            "--mem 1000000 holds no image of --size 2000: give at least 4000000",
        ),
        (merge_sort.parse_arguments, "--limit 0", "--limit 0 is too small: give at least 1"),
        (
            merge_sort.parse_arguments,
            "--max_size 10",
            "--max_size 10 is less than --min_size 100000: nothing to sort",
        ),
        (slow_gpu.parse_arguments, "--num_iters -1", "--num_iters -1 is too small: give at least 1"),
        (slow_gpu.parse_arguments, "--max_size 50", "--max_size 50 is too small: give at least 100"),
        (
            slow_gpu.parse_arguments,
            "--collection_rate 0",
            "--collection_rate 0.0 is not a valid interval: give seconds above 0",
        ),
        (
            mini_telemetry.parse_arguments,
            "",
            "name a dump, or set LAGGARD_TELEMETRY_CONFIG to a file with a dump_dir",
        ),
        (full_arguments, "--mnist_workers 1", "--mnist_workers 1 is too small: give at least 2"),
        (full_arguments, "--batch-size 0", "--batch-size 0 is too small: give at least 1"),
        (full_arguments, "--download", "--download needs a folder to put MNIST into: add --data DIR"),
    ],
)
def test_invalid_values_are_refused_in_one_line(
    parse: Parse, arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [line]


def test_more_memory_than_there_is_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scipy_arguments(["--mem", str(1 << 60)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--mem {1 << 60} is too much for this node: at most ")


@pytest.mark.parametrize("parse", [scipy_arguments, merge_sort.parse_arguments, slow_gpu.parse_arguments])
def test_what_is_left_out_has_a_default(parse: Parse) -> None:
    assert vars(parse([]))


def test_the_dumps_are_by_default_those_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "telemetry.yaml"
    settings.write_text("dump_dir: there\naggregator_port: 5252\n")
    monkeypatch.setenv("LAGGARD_TELEMETRY_CONFIG", str(settings))
    assert mini_telemetry.parse_arguments([]).dumps == ["there"]
    assert mini_telemetry.parse_arguments([]).port == 5252
    assert mini_telemetry.parse_arguments(["here"]).dumps == ["here"]


def test_settings_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAGGARD_TELEMETRY_CONFIG", "/nowhere.yaml")
    with pytest.raises(SystemExit) as ended:
        mini_telemetry.parse_arguments([])
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, "/nowhere.yaml" in line) == (2, True)


def test_runtime_is_another_name_for_work_time() -> None:
    assert scipy_arguments(["--runtime", "0.5"]) == scipy_arguments(["--work_time", "0.5"])


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("script", PROGRAMS)
def test_control_c_ends_an_example_without_a_traceback(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in script or "telemetry_full" in script:
        pytest.importorskip("torch")
    if "ray_libraries" in script:
        pytest.importorskip("ray.train", reason="needs ray[train]", exc_type=ImportError)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", interrupted)
    monkeypatch.setattr(Job, "current", interrupted)
    monkeypatch.setattr(sys, "argv", [script])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers of this process are ours
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert ended.value.code == 130


def test_control_c_reaches_no_worker_of_a_pool(tmp_path: Path) -> None:
    """All processes of a terminal get the signal, and each worker would print a traceback."""
    command = [sys.executable, str(EXAMPLES / "scipy_scale_work.py"), "--size=16", "--mem=4096", "--iterations=1000000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        # Tests that run in the background ignore it, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    while "Time for iteration" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest


def test_dragon_is_another_name_for_distributed() -> None:
    assert scipy_arguments(["--dragon"]) == scipy_arguments(["--distributed"])


@pytest.mark.parametrize(
    ("slow_s", "accused"), [(0.004, []), (0.02, ["node2"])], ids=["a little slower", "five times as slow"]
)
def test_the_custom_detector_accuses_the_node_of_a_very_slow_device(slow_s: float, accused: list[str]) -> None:
    detector = custom_detector.MyDetector(1.0, analysis_args=5.0)
    data = {("node1", "0"): [0.003] * 3, ("node1", "1"): [0.003] * 3, ("node2", "0"): [0.003] * 3}
    assert detector.analyze_data({**data, ("node2", "1"): [slow_s] * 3}, 5.0) == (bool(accused), accused)
    assert detector.analyze_data({**data, ("node2", "1"): [slow_s]}, 5.0) == (False, [])  # one reading is no proof
