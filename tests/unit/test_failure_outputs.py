"""``python -m benchmarks failure-outputs`` scores a reader of what failed jobs print, laggard's own or any command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NO_HOST = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LONG = "OSError: [Errno 28] No space left on device: " + "/a/long/path" * 40
SAMPLES = (
    {"text": f"step 7\n[rank1]: {NO_HOST}\n", "cause": "hardware", "reason_line": f"[rank1]:  {NO_HOST}", "note": "x"},
    {"text": f"{LONG}\n", "cause": "capacity", "reason_line": LONG, "note": None},
    {"text": "KeyError: 'labels'\n", "cause": "transient", "reason_line": "the store was away", "note": ""},
)
# A reader that quotes the last line, and blames the program for all.
LAST_LINE = "import json, sys; print(json.dumps({'line': sys.stdin.read().splitlines()[-1], 'kind': 'program'}))"


def benchmark(folder: Path, *options: str, corpus: str | None = None) -> subprocess.CompletedProcess[str]:
    file = folder / "corpus.jsonl"
    file.write_text("\n".join(map(json.dumps, SAMPLES)) if corpus is None else corpus)
    command = [sys.executable, "-m", "benchmarks", "failure-outputs", "--corpus", str(file), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def scores(folder: Path, *options: str, corpus: str | None = None) -> Mapping[str, Any]:
    done = benchmark(folder, "--json", str(folder / "scores.json"), *options, corpus=corpus)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((folder / "scores.json").read_text()))


def test_laggards_own_reader_is_scored_and_its_misses_are_printed(tmp_path: Path) -> None:
    third = pytest.approx(1 / 3)
    found = scores(tmp_path)
    assert found["total"] == 3
    assert (found["right_line"], found["right_kind"], found["harmful"]) == (
        2 * third.expected,
        2 * third.expected,
        third,
    )
    assert (found["n_right_line"], found["n_right_kind"], found["n_harmful"], found["n_unknown_kind"]) == (2, 2, 1, 0)
    printed = benchmark(tmp_path, "--misses").stdout
    assert "| right line | 2 of 3 | 66.7% |" in printed
    assert "output 3: transient, read as program, harmful" in printed
    assert "output 1" not in printed


def test_a_command_is_scored_as_another_reader(tmp_path: Path) -> None:
    found = scores(tmp_path, "--tool", f'{sys.executable} -c "{LAST_LINE}"')
    assert (found["n_right_line"], found["n_right_kind"], found["n_harmful"]) == (2, 0, 3)


@pytest.mark.parametrize(
    ("label", "is_right"),
    [
        ("KeyError: 'labels'", True),
        ("ERROR  KeyError:   'labels'", True),  # behind a prefix
        ("'labels'", False),  # too little of it
        ("ValueError: 'labels'", False),
        ("some 40 characters of another kind, and in the end KeyError: 'labels'", False),
    ],
)
def test_a_line_is_right_whatever_its_prefix_if_most_of_it_is_there(
    tmp_path: Path, label: str, *, is_right: bool
) -> None:
    sample = json.dumps({"text": "KeyError: 'labels'", "cause": "program", "reason_line": label})
    assert scores(tmp_path, corpus=sample)["n_right_line"] == is_right


def test_a_line_with_a_prefix_that_was_cut_is_right(tmp_path: Path) -> None:
    read = json.dumps({"line": f"node1: {LONG[:100]} …", "kind": "unknown"})
    (tmp_path / "read.json").write_text(read)
    sample = json.dumps(SAMPLES[1])
    assert scores(tmp_path, "--tool", f"cat {tmp_path}/read.json", corpus=sample)["right_line"] == 1


@pytest.mark.parametrize(
    ("kind", "cause", "is_harmful"),
    [
        ("program", "hardware", True),
        ("program", "network", True),
        ("program", "transient", True),
        ("program", "capacity", True),
        ("capacity", "transient", True),
        ("capacity", "program", False),
        ("hardware", "program", True),
        ("hardware", "transient", True),
        ("hardware", "network", False),
        ("network", "program", False),
        ("transient", "hardware", False),
        ("unknown", "hardware", False),
        ("program", "unknown", False),
    ],
)
def test_a_kind_is_harmful_if_it_ends_a_job_that_can_go_on_or_blames_a_healthy_node(
    tmp_path: Path, kind: str, cause: str, *, is_harmful: bool
) -> None:
    (tmp_path / "read.json").write_text(json.dumps({"line": "", "kind": kind}))
    sample = json.dumps({"text": "it ended", "cause": cause, "reason_line": "it ended"})
    assert scores(tmp_path, "--tool", f"cat {tmp_path}/read.json", corpus=sample)["n_harmful"] == is_harmful


@pytest.mark.parametrize(
    ("corpus", "complaint"),
    [
        ("", "is empty"),
        ('{"text": ""}', "line 1: no JSON object with text, cause and reason_line (KeyError('cause'))"),
        ("\n[1]", "line 2: no JSON object with text, cause and reason_line"),
        ('{"text": "a", "cause": "magic", "reason_line": "a"}', "the cause is 'magic', not one of program, hardware"),
        ('{"text": 7, "cause": "program", "reason_line": "a"}', "text and reason_line must be strings"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, corpus: str, complaint: str) -> None:
    done = benchmark(tmp_path, corpus=corpus)
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--corpus", "no such file"), "no such file cannot be read"),
        (("--tool", "no-such-tool"), "the tool does not work"),
        (("--tool", "false"), "false exited with 1"),
        (("--tool", "echo hello"), "echo printed 'hello\\n' in place of"),
    ],
)
def test_a_missing_corpus_and_a_tool_that_does_not_work_are_said(
    tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    done = benchmark(tmp_path, *options)
    assert done.returncode == 2
    assert complaint in done.stderr
