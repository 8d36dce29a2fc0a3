"""The examples refuse invalid values in one line that names the value and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import custom_detector
import merge_sort
import mini_telemetry
import pytest
import scipy_scale_work
import slow_gpu


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
        (mini_telemetry.parse_arguments, "", "name a dump, or generate one with --demo"),
        (
            mini_telemetry.parse_arguments,
            "--demo --port -1",
            "--port -1 is not a valid port: give 1 to 65535, or 0 for a free one",
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
