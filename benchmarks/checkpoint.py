"""Checkpoints: how long a save stops the program, when it counts, and how long a restore takes.

A job on virtual nodes, one rank on each, saves tensors with laggard and with what PyTorch has: ``torch.save`` with
fsync, and ``torch.distributed.checkpoint`` (dcp) with its own files, plain and asynchronous, and with laggard as its
storage.  The candidates take turns in each repetition; a restore ends when the program's tensors have their values.
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

from benchmarks.machine import description
from benchmarks.tables import table

__all__ = ["main"]

PROGRAM = Path(__file__).with_name("checkpoint_ranks.py")
DEADLINE_S = 900.0


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoint", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of each rank's tensors (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks, each on a node (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions (default: %(default)s)")
    parser.add_argument(
        "--sizes", default="16,64,256", help="MiB of each rank for the copies and the primary (default: %(default)s)"
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
        found = run(Path(folder), options.ranks, options.mib, options.repeats, sizes)
    print(f"\n{options.ranks} ranks of {options.mib} MiB, medians of {options.repeats} in s per GiB and rank (worst)\n")
    print("\n".join(compared(found["candidates"], options.mib / 1024)))
    print("\nlaggard alone: copies, and the primary's state server\n")
    print("\n".join(copies(found["copies"], options.ranks)))
    return 0


def run(
    folder: Path, ranks: int, mib: int, repeats: int, sizes: Sequence[int]
) -> Mapping[str, list[dict[str, object]]]:
    """Run the job, and return what its ranks measured."""
    result = folder / "result.json"
    largest = max([mib, *sizes])
    command = [
        *(sys.executable, "-m", "laggard", "run", f"--local-nodes={ranks}", "--virtual-gpus=1", "--per-device"),
        # Of each rank one checkpoint and the next one, here and from a peer; and as much again, to be filled meanwhile.
        *(f"--checkpoint-memory={8 * largest + 256}M", str(PROGRAM)),
        *(f"--mib={mib}", f"--repeats={repeats}", f"--sizes={','.join(map(str, sizes))}", f"--folder={folder}"),
        f"--result={result}",
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
    found: Mapping[str, list[dict[str, object]]] = json.loads(result.read_text())
    return found


def compared(candidates: Sequence[Mapping[str, object]], gib: float) -> list[str]:
    """Return the table of all candidates; a save or a restore takes as long as its slowest rank."""
    rows = []
    for candidate in candidates:
        seconds = [_spread(candidate[column], gib) for column in ("blocks_s", "counts_s", "restore_s")]
        rows.append([candidate["name"], *seconds])
    return table(["", "save blocks the program", "until it counts", "restore"], rows)


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
