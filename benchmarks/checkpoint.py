"""Checkpoints: how long a save stops the program, when it counts, and how long a restore takes.

A job on virtual nodes, one rank on each, saves tensors with laggard and with what PyTorch has: ``torch.save`` with
fsync, and ``torch.distributed.checkpoint`` (dcp) with its own files, plain and asynchronous, and with laggard as its
storage.  The candidates take turns in each repetition; a restore ends when the program's tensors have their values.
Before, a few jobs that save for the first time: how long the first, the second and later saves block the program.
Then laggard alone, with and without a copy on a peer, and State itself, for several sizes: how long the copies take,
and what it costs the state server on the primary node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.tables import table

__all__ = ["main"]

PROGRAM = Path(__file__).with_name("checkpoint_ranks.py")
BEGINNING = Path(__file__).with_name("checkpoint_saves.py")
# How many saves a job does; from the fourth on, each is like the one before.
N_SAVES = 6
DEADLINE_S = 900.0
_COLUMNS = {
    "blocks_s": "save blocks the program",
    "counts_s": "until it counts",
    "save_processor_s": "its processor",
    "restore_s": "restore",
    "restore_processor_s": "its processor",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoint", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of each rank's tensors (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks, each on a node (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument(
        "--sizes", default="16,64,256", help="MiB of each rank for the copies and the primary (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=3, help="jobs for the first saves (default: %(default)s)")
    parser.add_argument(
        "--preload", default="auto", help="of the jobs for the first saves, as for laggard (default: %(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="for the files that are compared with (default: a temporary one)"
    )
    options = parser.parse_args(arguments)
    if find_spec("torch") is None:
        parser.error("it needs PyTorch: install laggard[torch]")
    sizes = [int(size) for size in options.sizes.split(",")]
    print(description())
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        began = {
            announced: [
                beginning(Path(folder), options.ranks, options.mib, announced, options.preload)
                for _ in range(options.jobs)
            ]
            for announced in (True, False)
        }
        found = run(Path(folder), options.ranks, options.mib, options.repeats, sizes)
    print(f"\n{options.ranks} ranks of {options.mib} MiB: a save blocks the program, medians of {options.jobs} jobs ")
    print("in s per GiB and rank (worst)\n")
    print("\n".join(first_saves(began, options.mib / 1024)))
    print(f"\n{options.ranks} ranks of {options.mib} MiB, medians of {options.repeats} in s per GiB and rank (worst)\n")
    print("\n".join(compared(found["candidates"], options.mib / 1024)))
    print("\nwhat all ranks hold alike, with and without the digests that show it: s per GiB (worst)\n")
    print("\n".join(digests(found["digests"], options.mib / 1024)))
    print("\nlaggard alone: copies, and the primary's state server\n")
    print("\n".join(copies(found["copies"], options.ranks)))
    return 0


def run(folder: Path, ranks: int, mib: int, repeats: int, sizes: Sequence[int]) -> Mapping[str, Any]:
    """Run the job, and return what its ranks measured."""
    largest = max([mib, *sizes])
    # Of each rank one checkpoint and the next one, here and from a peer; and as much again, to be filled meanwhile.
    options = [f"--repeats={repeats}", f"--sizes={','.join(map(str, sizes))}", f"--folder={folder}"]
    found: Mapping[str, Any] = _job(folder, ranks, 8 * largest, PROGRAM, mib, options)
    return found


def beginning(folder: Path, ranks: int, mib: int, announced: bool, preload: str) -> Mapping[str, list[float]]:
    """Run a job that begins to save, and return how long each save and each copy took, and the processor time."""
    options = [f"--saves={N_SAVES}", *(["--announced"] if announced else [])]
    # Of each rank two checkpoints, the next one and a spare one, here; and all but that from a peer.
    found: Mapping[str, list[float]] = _job(folder, ranks, 8 * mib, BEGINNING, mib, options, preload)
    return found


def _job(
    folder: Path,
    ranks: int,
    memory_mib: int,
    program: Path,
    mib: int,
    options: Sequence[str],
    preload: str = "auto",
) -> Any:
    """Run a job with a rank on each node, and return what rank 0 wrote."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "laggard", "run", f"--local-nodes={ranks}", "--virtual-gpus=1", "--per-device"),
        *(
            f"--preload={preload}",
            f"--checkpoint-memory={memory_mib + 256}M",
            str(program),
            f"--mib={mib}",
            f"--result={result}",
            *options,
        ),
    ]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode or not result.exists():
        raise SystemExit(f"the job failed with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(result.read_text())


def first_saves(began: Mapping[bool, Sequence[Mapping[str, list[float]]]], gib: float) -> list[str]:
    """Return the table of the first saves of jobs, with and without their size announced."""

    def row(name: str, jobs: Sequence[Mapping[str, list[float]]], what: str) -> list[str]:
        columns = [[job[what][number] for job in jobs] for number in range(3)]
        columns.append([seconds for job in jobs for seconds in job[what][3:]])
        return [name, *(_spread(column, gib) for column in columns)]

    rows = [
        row("a copy in the process's memory", [*began[True], *began[False]], "copies"),
        row("laggard, size announced", began[True], "saves"),
        row("its processor time on rank 0", began[True], "processor"),
        row("laggard, not announced", began[False], "saves"),
        row("its processor time on rank 0", began[False], "processor"),
    ]
    return table(["", "first save", "second", "third", "steady"], rows)


def compared(candidates: Sequence[Mapping[str, object]], gib: float) -> list[str]:
    """Return the table of all candidates; a save or a restore takes as long as its slowest rank."""
    rows = [[each["name"], *(_spread(each[column], gib) for column in _COLUMNS)] for each in candidates]
    return table(["", *_COLUMNS.values()], rows)


def digests(measured: Mapping[str, list[float]], gib: float) -> list[str]:
    """Return the table of a save with and without digests."""
    columns = {
        "_s": "save blocks the program",
        "_counts_s": "until it counts",
        "_first_s": "processor of the first rank",
        "_all_s": "of all processes",
    }
    rows = [
        [f"{name} digests", *(_spread(measured[name + column], gib) for column in columns)]
        for name in ("without", "with")
    ]
    first, everything = (
        statistics.median(measured["with" + column]) - statistics.median(measured["without" + column])
        for column in ("_first_s", "_all_s")
    )
    save_s = statistics.median(measured["with_all_s"])
    shares = f"the digests are {first / save_s:.1%} of the save's processor time on the first rank, "
    return [*table(["", *columns.values()], rows), "", f"{shares}{everything / save_s:.1%} on all ranks"]


def copies(measured: Sequence[Mapping[str, object]], ranks: int) -> list[str]:
    """Return the table of sizes and copies."""
    rows = []
    for row in measured:
        gib = float(str(row["mib"])) / 1024
        rows.append(
            [
                f"{row['mib']} MiB x {ranks}",
                row["copies"] or "State itself",
                *(_spread(row[column], gib) for column in ("blocks_s", "counts_s")),
                f"{float(str(row['server_bytes'])) / 1024:.0f} KiB",
                f"{1e3 * float(str(row['server_cpu_s'])):.0f} ms",
            ]
        )
    head = [
        "saved",
        "copies",
        "blocks, s per GiB",
        "counts, s per GiB",
        "to and from the state server",
        "its processor",
    ]
    return table(head, rows)


def _spread(values: object, gib: float) -> str:
    if not isinstance(values, list) or not values:
        return ""
    return f"{statistics.median(values) / gib:.2f} ({max(values) / gib:.2f})"
