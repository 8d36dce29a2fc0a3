"""Every benchmark command in the documents runs as printed, but with small numbers, and prints its tables."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import slurm_daemons
from tests.clusters.conftest import require
from tests.clusters.machines import missing_for_machines
from tests.printed import printed_benchmarks

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0
PLOT, LINKS_PLOT = "docs/images/detection-benchmark.png", "docs/images/links.png"

# A test may wait for its own benchmark and for one that was started before.
pytestmark = pytest.mark.timeout(3 * DEADLINE_S)


@dataclass(frozen=True)
class Small:
    """Options that make the numbers small, appended so that they win; and what must still be printed."""

    options: str
    shows: Sequence[str]


# By the beginning of the text after ``python -m benchmarks``; the longest match counts.
SMALL = {
    "blame": Small(
        "--jobs 2 --seed 1", ["| one-off | 1 | 0 | 0 |", "wrong exclusions: 0 of 6 nodes", "wrong ends: 0 of 2 jobs"]
    ),
    "poisoned": Small(
        "--jobs 1 --live 1 --healthy 20 --seed 1",
        ["| all that have to go back |  | 1 | 1 | 1 |", "| run | 1 |", "| simulated | 20 |"],
    ),
    "chaos": Small(
        "--faults 1 --seed 2",  # on two nodes, of which one is killed
        ["none lost or repeated", "1 faults in ", "│ state server ", "0 storms failed"],
    ),
    "simulation": Small("--events 20000", ["│ the controller is stopped ", "0 schedules failed"]),
    "simulation --replay": Small("", ["launch    0 on ", "ended     with "]),
    "top": Small("--nodes 1 --seconds 1", ["| 8 | 1 s | "]),
    "top --picture": Small("--nodes 1", ["the screen is in docs/images/top.svg"]),
    "checkpoint": Small(
        "--mib 8 --repeats 1 --sizes 4 --jobs 1",
        [
            "| laggard, size announced |",
            "| laggard, not announced |",
            "2 ranks of 8 MiB",
            "| laggard |",
            "| torch.save, torch.load in the node's memory |",
            "| torch.save with fsync, torch.load |",
            "| 4 MiB x 2 | 2 |",
            "| with digests |",
        ],
    ),
    "detection": Small(
        f"--trials 1 --largest 8 --plot {PLOT}",
        [
            "Long runs, 64,000 GPU-rounds",
            "| 8 | 100 % |",
            "| 8 | 45 % |",
            "found by the reading at 5.8 %",
            "| noisy steps | 8 |",
            "| stages 1 : 1.4 : 2 | no labels |",
            "| all drifting by up to 2 % a round, 24 rounds |",
            "| 8 on 4 |",
            "| break-even | ",
            "| runs of 10 rounds on average, 10 to 50 % slow | ",
            "| phases, bursts and outliers | 1 | ",
            "| without the cap of a round | ",
            "| 50 % slower in every sixth round | 4 |",
            "| 8 | 3 | `update_arrays`, 5 % spikes |",
            "| MAD z > 3.5 |",
        ],
    ),
    "detection --only ablation": Small("--trials 1", ["| as it is | ", "| without the cap of a round | "]),
    "detection --only economics": Small(
        "--trials 10",
        [
            "| 1.05 | 3 s |",
            "| 10 | 1800 s |",
            "| laggard, cost unknown | ",
            "| 60 s every 20 min | 2 | 300 s |",
            "five times too large: 3.24, at 0.45 of it",
        ],
    ),
    "detection --only references": Small(
        "--trials 10",
        ["| one node idle in its first eight rounds | 2 | 0 |", "| the same, temperature known | 0 | 0 |"],
    ),
    "failure-outputs": Small("", ["| right line | 1 of 1 | 100.0% |"]),
    "failures": Small(
        "--only SIGKILL, --limit 120",
        [
            "\n| SIGKILL, once | finishes | yes | ",
            "\nlaggard: 1 of 1 jobs that could finish did; node2 named alone in 1 of 1",
        ],
    ),
    "outages --lengths 10 30 120 600": Small(
        "--lengths 5", ["| a TCP service, not named | 5 | ", "| HTTP 503 | 5 | ", "| a mount | 5 | "]
    ),
    "faults": Small("--repeats 1 --only worker", ["│ worker killed  ", "│ worker killed, Ray's own actor restart │"]),
    "links": Small(
        f"--jobs 1 --largest 8 --rounds 20 --cost-rounds 4 --plot {LINKS_PLOT}",
        [
            "## Found\n\n| fault | N | jobs | within | found |",
            "| node sends 30 % slower | 8 | 1 | 6 | 100 % |",
            "| node sends 10 % slower from the first round | 8 | ",
            "| the job's own on 10 % of NICs, 4 rounds on average | 8 | 160 | 0 | 0 |",
            "| of repeats | 30 and 30 % | 1 | 100 % | ",
            "## Budget\n\n| noise | N | healthy jobs |",
            "| normal, 8 % | 3 | 30 | 0 | 0 | 0 |",
            "## Seldom\n\n| N | pair slower by | jobs |",
            "## Cost\n\n| N | transfers |",
        ],
    ),
    "links --wires": Small(
        "--repeats 1 --fault times", ["## Wires\n\n| fault | runs |", "| sends 10 times as slow | 1 | 1 | "]
    ),
    "outsider": Small(
        "--repeats 1 --block 0.5 --attacks hold",
        ["state server: 127.", "| hold | link probes | ", "| hold | shard servers | ", "| hold | all at once | "],
    ),
    "outsider --slurm": Small(
        "--repeats 1 --block 0.5 --attacks hold",
        ["| hold | agents' port | ", "| hold | srun | ", "| hold | state server | "]
        if missing_for_machines(*slurm_daemons.PROGRAMS) is None
        else ["the Slurm cluster is skipped: it needs "],
    ),
    "page": Small("--nodes 2 --repeats 1", ["| from a server | 16 | ", "| report | 16 | "]),
    "page --in-use": Small(
        "--nodes 2 --repeats 1 --polls 10 --metrics 20 --ranks 4",
        ["| report of 16 devices | zoom | ", "| polls | ", "| server, 20 metrics of 4 ranks | pointer in a chart | "],
    ),
    "probes": Small(
        "--rounds 2 --saturated-rounds 2 --devices 2 --probes gemm_fp32,launch",
        [
            "## Repeatability\n\n2 rounds;",
            "| us each |",
            "| best reading |",
            "| probe | compute | memory | bus | processor | host memory |",
            "4 series of 2 busy device(s)",
            "\n| gemm_fp32 | 0 | ",
        ],
    ),
    "first-day": Small(
        "--minutes 0.1 --devices 2",
        [
            "# The first day on virtual",
            "## A fresh rank",
            "## Each probe alone",
            "| gemm_fp32 computes correctly | yes |",
            "## Saturated",
        ],
    ),
    "sections": Small(
        "--blocks 20",
        ["| outside a job |", "| in a job |", "| in a job, one within another that waits, each |", "| 64 |"],
    ),
    "sections --ranks": Small("--repeats 1 --slower-by 100", ["| 100 % | no | 1 | 1 | ", "| 100 % | yes | 1 | 1 | "]),
    "intrusion": Small(
        "--cycles 1 --block 0.3",
        [
            "| matrix products | probe, separate process |",
            "| memory | probe, inline |",
            "| training | tiny operations (Dragon's documented probe) |",
        ],
    ),
    "intrusion --lock-step": Small(
        "--cycles 1 --block 0.3 --ranks 2",
        [
            "| step | ranks | independent moments | common moments |",
            "| 20 ms | 512 | ",
            "| 2 | ",
            " | common moments | ",
        ],
    ),
    "restart": Small(
        "--kills 1 --relaunches 0 --ddp-kills 0 --transformers-kills 0 --slow-start-kills 0",
        ["│ laggard --per-node ", "│ laggard, Ray actors ", "│ Ray actor, max_restarts ", "torchrun elastic "],
    ),
    "restart --kills 0": Small(
        "--relaunches 1 --startups 1 --ddp-kills 0 --transformers-kills 0 --slow-start-kills 0",
        ["verdict to first line, 1 relaunches", "- replacing nodes", "command to first line, 1 starts"],
    ),
    "restart --kills 0 --relaunches 0": Small(
        "--ddp-kills 1 --transformers-kills 0 --slow-start-kills 1",
        [
            "│ laggard --per-device ",
            "│ laggard --preload none ",
            "│ torchrun --max-restarts ",
            "│ slow start: torchrun ",
        ]
        if find_spec("torch")
        else ["training is skipped: torch is not installed"],
    ),
    "site": Small("--trials 1", ["| lemons fail N times as often |", "\n| 10 ", "| 1.17 |", "\n| 100 ", "| 2.20 |"]),
    "scale": Small(
        "--hosts 8 --devices 2 --interval 0.1 --rounds 5 --slow-round 2",
        ["┃ 8 x 2 ", "│ rounds judged, devices in the last ", "│ append-only file "],
    ),
    "scale --agents": Small("--agents 3", ["┃ 3 agents ", "│ all dial again at once "]),
    "scale --nodes": Small("--nodes 1", ["┃ nodes ┃ command to first line", "\n│ 1     │"]),
    "state": Small(
        "--gib 0.05 --repeats 1 --transactions 5",
        ["medians of 1 arrays", "\nState / raw  ", "\nState, reading", "breakdown in ms: "],
    ),
    "telemetry --only hung-node": Small(
        "--quick", ["  all nodes answer ", "  just hung ", "  hung for longer ", "it was in all panels again"]
    ),
    "telemetry": Small(
        "--quick --rate 10000 --seconds 1 --requests 50",
        [
            "add_data, in the calling thread",
            "samples in 1 s, paced",
            "points, 1 client ",
            "points, 4 clients ",
            "get_data of 30,000 points",
            "node agent, level 4",
            "window of ",
            "50 bad requests",
        ],
    ),
    "telemetry --only load": Small(
        "--quick", ["under load: 16 processes", "ms of processor time for a panel", "15 panels, 15 min"]
    ),
    "telemetry --only scale": Small(
        "--quick", ["us of the primary for each series", "overview of 160 series: median "]
    ),
}
# A peer that is not installed: it is not a dependency of the tests.
LEFT_OUT = " --dragon PYTHON"
COMMANDS = sorted(printed_benchmarks(), reverse=True)  # the short ones come last


def words_of(command: str) -> tuple[str, list[str]]:
    """Return a printed command's benchmark and its options, including optional ones."""
    name, *options = shlex.split(re.sub(r"[][]", "", command.removeprefix("python -m benchmarks ")))
    return name, [{"DIR": "data", "FILE": "corpus.jsonl"}.get(word, word) for word in options]


def small_words_of(command: str) -> tuple[str, list[str]]:
    """Return a printed command's benchmark and its options, followed by those that make it small."""
    name, options = words_of(command.replace(LEFT_OUT, ""))
    return name, [*options, *small(command).options.split()]


def small(command: str) -> Small:
    """Return the small options of a printed command, and what it must print."""
    printed = command.removeprefix("python -m benchmarks ")
    return SMALL[max((beginning for beginning in SMALL if printed.startswith(beginning)), key=len)]


def effect_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return words that are equal for commands with the same effect: of an option given twice the last wins."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            options[name] = []
        else:
            options.setdefault(name, []).append(word)
    return tuple(word for name, values in sorted(options.items()) for word in (name, *values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What benchmarks need of a clone, with made-up timings of twelve GPUs, since the real ones are not ours."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("benchmarks", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / PLOT).parent.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        json.dumps({"text": "KeyError: 7", "cause": "program", "reason_line": "KeyError: 7"})
    )
    chance = random.Random(1)
    for name, column in (("sgemm_v100", "perf_ms"), ("resnet_v100", "iteration_ms")):
        (folder / "data").mkdir(exist_ok=True)
        with (folder / "data" / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["uuid", "ts_s", column])
            for gpu in range(12):
                typical_ms = chance.uniform(95, 105)
                writer.writerows([f"gpu{gpu}", run, typical_ms * math.exp(chance.gauss(0, 0.003))] for run in range(30))
    return folder


@dataclass
class Runs:
    """Runs of benchmarks, two at a time since they mostly wait. Commands with the same effect share a run."""

    folder: Path
    pool: ThreadPoolExecutor
    by_asked: dict[tuple[str, tuple[str, ...]], Future[subprocess.CompletedProcess[str]]] = field(default_factory=dict)

    def of(self, command: str) -> Future[subprocess.CompletedProcess[str]]:
        """Return the run of a printed command."""
        name, options = small_words_of(command)
        asked = name, effect_of(options)
        if asked not in self.by_asked:
            self.by_asked[asked] = self.pool.submit(self._run, name, *options)
        return self.by_asked[asked]

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "benchmarks", *words],
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder / "home"), "LAGGARD_REPORT": "0"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )


@pytest.fixture(scope="module")
def runs(folder: Path, request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Start the runs of the tests that were chosen."""
    tests = [test for test in request.session.items if isinstance(test, pytest.Function) and hasattr(test, "callspec")]
    chosen = {test.callspec.params.get("command") for test in tests}
    with ThreadPoolExecutor(2, "benchmark") as pool:
        runs = Runs(folder, pool)
        for command in filter(chosen.__contains__, COMMANDS):
            runs.of(command)
        yield runs
        pool.shutdown(cancel_futures=True)


def marked(command: str) -> Any:
    """Return a command as a parameter of a test."""
    marks = [pytest.mark.root("to make network namespaces")] if "--wires" in command else []
    return pytest.param(command, marks=marks)


@pytest.mark.parametrize("command", [marked(command) for command in COMMANDS])
def test_the_benchmark_prints_its_tables(command: str, runs: Runs) -> None:
    if words_of(command)[0] == "checkpoint":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    if "--wires" in command:
        require("tc")
    done = runs.of(command).result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [text for text in small(command).shows if text not in done.stdout] == [], done.stdout
    plots = [plot for plot in (PLOT, LINKS_PLOT) if plot in done.args]
    assert all((runs.folder / plot).stat().st_size > 10_000 for plot in plots)


def test_every_benchmark_is_printed_somewhere() -> None:
    listed = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=False)
    named = {line.split()[0] for line in listed.stderr.splitlines() if line.startswith("  ")}
    assert {words_of(command)[0] for command in COMMANDS} == named
