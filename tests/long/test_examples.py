"""The examples do what their README shows: its commands are run as printed, and must print its lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from merge_sort import SMALLEST_PIECE

from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.dumps.writing import write_dump
from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.made_up_job import T0, series
from tests.printed import BATCH_SCRIPT
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOISE = re.compile(r"Traceback|WARNING|INFO|ERROR|raylet|SIGTERM received|core_worker")
ACCOUNT = re.compile(r"\d\d:\d\d\.\d |\d+ launch")
"""Lines of the command's own, on standard error, rather than the program's."""


@dataclass(frozen=True)
class Printed:
    """A command of the README and the lines below it."""

    command: tuple[str, ...]
    lines: tuple[str, ...]


def sessions() -> Iterator[list[Printed]]:
    """Yield the README's console blocks: commands that follow each other in one folder."""
    for block in re.findall(r"^```console\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.MULTILINE | re.DOTALL):
        commands = block.removeprefix("$ ").split("\n$ ")
        yield [Printed(tuple(shlex.split(first)), tuple(rest)) for first, *rest in map(str.splitlines, commands)]


def name_of(session: list[Printed]) -> str:
    return next(word for word in session[0].command if word.endswith(".py")).removeprefix("examples/")


def shape(line: str) -> str:
    """Return a line without what differs from run to run: its numbers, paths and the width of its columns."""
    line = re.sub(r"\w{3} \w{3} [\d :]+$", "DATE", line)
    line = re.sub(r"\S*/dumps/(\w+)-\S+", r"DUMP-\1", line)
    line = re.sub(r"(?<![a-z])\d[\d.]*(e-?\d+)?|(?<= )-(?= |$)", "#", line)  # "-": no number this time
    return re.sub(r"\s+", " ", line).strip()


def assert_in_order(printed: list[str], output: str) -> None:
    """Check that all printed lines came, in order; other lines may come in between."""
    came = iter([shape(line) for line in output.splitlines()])
    for line in printed:
        assert shape(line) in came, f"not there, or not in its place: {line!r} ({shape(line)!r}) in\n{output}"


@pytest.fixture
def run(start_job: Callable[..., RunningJob]) -> Callable[[Printed, Path], tuple[str, str]]:
    """Run a printed command in a folder; return what came on standard output and on standard error."""

    def run_printed(printed: Printed, folder: Path) -> tuple[str, str]:
        program, *arguments = printed.command
        if program == "laggard" and arguments[0] != "replay":
            job = start_job(*arguments, directory=folder)
            assert job.finish() == 0, job.everything()
            assert job.processes() == []
            return job.output, job.account
        command = [sys.executable] if program == "python" else [sys.executable, "-m", "laggard"]
        ended = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            input="",  # what Ctrl-D does: it ends a server of dumps
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout, ended.stderr

    return run_printed


@pytest.mark.parametrize(
    "session", [pytest.param(each, id=f"{i}-{name_of(each)}") for i, each in enumerate(sessions())]
)
def test_what_the_readme_prints_comes(
    session: list[Printed], run: Callable[[Printed, Path], tuple[str, str]], tmp_path: Path
) -> None:
    if "telemetry_full" in name_of(session):
        pytest.importorskip("torch")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "examples").symlink_to(EXAMPLES)
    for printed in session:
        out, err = run(printed, folder)
        for _ in range(2 if name_of(session) == "merge_sort.py" else 0):
            # The nodes' readings are a second old or more: on a busy machine they may come too late once.
            if min(cut_offs(out), default=0) <= SMALLEST_PIECE:
                out, err = run(printed, folder)
        lines = [line for line in printed.lines if line != "..."]
        assert lines
        assert_in_order([line for line in lines if not ACCOUNT.match(line)], out)
        assert_in_order([line for line in lines if ACCOUNT.match(line)], err)
        assert not NOISE.search(out + err), out + err
    if name_of(session) == "scipy_scale_work_db_dump.py":
        dumps = read_dump([folder / "dumps"])
        assert {"elapsed_time", "iteration_time", "iteration", "pool_start_time", "load_average"} <= dumps.metrics()
        assert dumps.samples.size().samples > 6 * 64
    if name_of(session) == "merge_sort.py":
        assert min(cut_offs(out)) > SMALLEST_PIECE  # the watcher has stopped it, not the want of pieces


def cut_offs(output: str) -> set[int]:
    """Return the lengths of the pieces at which the merge sort stopped halving."""
    return {int(row[1]) for row in re.findall(r"^ +100000 .* (node\d) +\d+ +(\d+)$", output, re.MULTILINE)}


def test_more_workers_than_processors_are_threads(
    start_job: Callable[..., RunningJob],
) -> None:
    script = str(EXAMPLES / "scipy_scale_work.py")
    work = ("--dragon", "--num_workers=512", "--iterations=1", "--burns=0", "--size=32", "--mem=16384")
    job = start_job("--local-nodes=1", script, *work)
    assert job.finish() == 0, job.everything()
    assert re.search(r"512 workers are threads of (\d+) processes: the job has \1 CPUs", job.output)
    assert "Time for iteration 0" in job.output


@pytest.mark.parametrize(
    ("script", "sign"),
    [("slow_gpu.py --no-thrash", "launch 0: "), ("scipy_scale_work.py --dragon --size 32 --mem 65536", "iteration 0")],
)
def test_control_c_at_a_job_ends_its_example_without_a_traceback(
    start_job: Callable[..., RunningJob], script: str, sign: str
) -> None:
    name, *arguments = script.split()
    job = start_job("--local-nodes=1", "--virtual-gpus=2", str(EXAMPLES / name), *arguments)
    job.wait_for(sign)
    command = psutil.Process(job.process.pid)
    group = []
    for process in [command, *command.children(recursive=True)]:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == os.getpgid(command.pid):
                group.append(process.pid)
    for pid in reversed(group):  # as a terminal does, at once
        os.kill(pid, signal.SIGINT)
    assert job.finish() == 130, job.everything()
    said = job.everything()
    assert "Traceback" not in said, said


@pytest.mark.parametrize(
    ("name", "library", "signs"),
    [
        (
            "hello.py",
            "laggard",
            ["launch 0 on node1, from step 0", "launch 1 .*, from step 51", "done: 100 steps"],
        ),
        ("fsdp2.py", "torch", ["launch 0: 2 ranks, from step 0", "launch 1: 2 ranks, from step 10", "done: 30 steps"]),
        (
            "finetune.py",
            "transformers",
            ["launch 0: 2 ranks, from the beginning", "launch 1: 2 ranks, from .*checkpoint-10", "done: 30 steps"],
        ),
        (
            "jax_loop.py",
            "jax",
            ["launch 0: 2 nodes, from step 0", "launch 1: .*, from step 60", "done: 100 steps"],
        ),
    ],
)
def test_an_example_goes_on_where_the_command_in_it_makes_it_fail(
    name: str, library: str, signs: list[str], start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    command = re.findall(rf"laggard (--.*{name}[^.\n]*)", (EXAMPLES / name).read_text())[0]
    job = start_job(*shlex.split(command), directory=tmp_path)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert re.search(".*".join(signs), job.output, re.DOTALL), job.everything()


def test_the_notebook_says_which_device_of_a_dump_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dumps").mkdir()
    write_dump("dumps", "node1", T0, series())
    notebook = json.loads((EXAMPLES / "read_dump.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - as Jupyter does
    assert names["slowdown"].max().idxmax() == ("node2", 0)


def test_the_batch_script_is_that_of_the_guide() -> None:
    assert (EXAMPLES / "job.sh").read_text() == BATCH_SCRIPT  # which tests/clusters/test_slurm.py runs


def test_the_requirements_of_an_example_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {line for name in ("ray", "examples", "torch") for line in project[name]}
    lines = (EXAMPLES / "telemetry_full" / "requirements.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} <= wanted


def test_the_readme_has_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    scripts = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".ipynb", ".py", ".sh"}]
    assert [name for name in scripts if f"({name})" not in text] == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("scipy_scale_work.py --dragon", r"--distributed needs the nodes of a job: not in a laggard job .*'laggard "),
        ("scipy_scale_work_db_dump.py", r"nothing to dump at telemetry level 0: .*'laggard --telemetry-level=3"),
        (
            "merge_sort.py",
            r"from telemetry level 2 on, not at 0: .*'laggard --telemetry-level=2 examples/merge_sort.py'",
        ),
        ("custom_detector.py", r"not in a laggard job .*'laggard PROGRAM'"),
        ("slow_gpu.py", r"not in a laggard job .*'laggard PROGRAM'"),
        ("telemetry_full/telemetry_full.py", r"not in a laggard job .*'laggard PROGRAM'"),
    ],
)
def test_without_laggard_around_it_an_example_says_so(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "telemetry_full" in script:
        pytest.importorskip("torch")
    name, *arguments = script.split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    (line,) = str(ended.value.code).splitlines()
    assert re.search(message, line)


def test_the_merge_sort_needs_level_two() -> None:
    job = {"ENDPOINT_FILE": "/nowhere/endpoint.json", "LAUNCH": "0", "NODE": "node1", "TELEMETRY_LEVEL": "1"}
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "merge_sort.py"],
        env={**os.environ, **{f"LAGGARD_{name}": value for name, value in job.items()}},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert "from telemetry level 2 on, not at 1" in line
