"""Poisoned saves: PyTorch jobs whose newest save is bad must go on from an older one; healthy jobs never go back.

What is wrong is drawn at random: values that were wrong before they were saved, bits that flip where they are stored, a
value or a file that is cut. Of two checkpoints, the program restores the newest, and fails. Healthy jobs meet one-off
failures and preemptions, some in a row; a part of them runs for real, all go through the policy on a simulated clock.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tqdm import tqdm

from benchmarks.blame import end_of, environment
from benchmarks.machine import description
from benchmarks.poisoned_jobs import KINDS, Job, draw_healthy, draw_poisoned, spoil_bytes
from benchmarks.poisoned_policy import simulate
from benchmarks.tables import table

SIDE_BY_SIDE = 4  # they mostly wait
DEADLINE_S = 1800.0  # on a busy machine
GIVE_UP_AFTER_S = 60  # without an older save
N_WITHOUT_OLDER = 10  # one in so many jobs more has no older save
LAGGARD = (
    *(sys.executable, "-m", "laggard", "run", "--resilient", "--per-node", "--grace=2"),
    *("--no-report", "--preload=none", "--telemetry-level=0", "--backoff=0.2", "--max-restarts-per-hour=1000"),
)
_LAUNCH = re.compile(r"^\S+ launch {4}\d+ on ", re.MULTILINE)
PROGRAM = str(Path(__file__).with_name("poisoned_program.py"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    job: Job
    exit_code: int | None  # None: it had to be stopped
    launches: int
    back: int  # how often it went back
    took_s: float
    account: str

    @property
    def is_miss(self) -> bool:
        """Whether something is to be looked at."""
        is_saved = self.exit_code == 0 and self.back == self.job.goes_back
        return is_saved == (self.job.where == "a key of State")


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks poisoned", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help="with a bad save (default: %(default)s)")
    parser.add_argument("--healthy", type=int, default=1000, metavar="N", help="simulated (default: %(default)s)")
    parser.add_argument("--live", type=int, default=60, metavar="N", help="healthy ones run too (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same jobs again (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only this job of those with a bad save")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each job there, too")
    options = parser.parse_args(arguments)
    numbers = range(options.jobs) if options.only is None else [options.only]
    jobs = [draw_poisoned(options.seed, number) for number in numbers]
    jobs += [draw_poisoned(options.seed, n, "a key of State") for n in range(options.jobs // N_WITHOUT_OLDER)]
    jobs += [draw_healthy(options.seed, number, own_words=True) for number in range(options.live)]
    print(description(), flush=True)
    outcomes = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as side_by_side, tqdm(total=len(jobs), unit="job", disable=None) as bar:
        for outcome in side_by_side.map(run, jobs):
            outcomes.append(outcome)
            bar.update()
            if options.json:
                options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
            if outcome.is_miss or options.only is not None:
                with tqdm.external_write_mode():
                    said = f"ended with {outcome.exit_code}, went back {outcome.back} times"
                    print(f"\nseed {options.seed}, {outcome.job}: {said}\n{outcome.account}", flush=True)
    print("", *_tables(outcomes), "", *_healthy(outcomes, options.seed, options.healthy), sep="\n")
    return 0


def _tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = []
    for where, kinds in KINDS.items():
        for how in kinds:
            found = [each for each in outcomes if (each.job.where, each.job.how) == (where, how)]
            rows += [(where, how, *_row(found))] if found else []
    poisoned = [each for each in outcomes if each.job.goes_back]
    rows += [("all that have to go back", "", *_row(poisoned))] if poisoned else []
    yield from table(("saved in", "what is wrong", "jobs", "go on", "went back", "launches", "seconds"), rows)


def _row(outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    return (
        len(outcomes),
        sum(each.exit_code == 0 for each in outcomes),
        sum(each.back > 0 for each in outcomes),
        f"{statistics.mean(each.launches for each in outcomes):.1f}",
        f"{statistics.mean(each.took_s for each in outcomes):.0f}",
    )


def _healthy(outcomes: Sequence[Outcome], seed: int, n_jobs: int) -> Iterator[str]:
    live = [each for each in outcomes if not each.job.how]
    relaunches = sum(each.launches - 1 for each in live)
    rows = [("run", len(live), relaunches, sum(each.back > 0 for each in live))] if live else []
    for own_words, said in ((True, "simulated"), (False, "simulated, one-offs may repeat their words")):
        rows.append((said, *simulate(seed, n_jobs, own_words=own_words)))
    yield from table(("healthy jobs", "jobs", "relaunches", "went back"), rows)


def run(job: Job) -> Outcome:
    """Run one job for real."""
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, began_s = Path(name), time.monotonic()
        if job.where == "directory":
            _launch(replace(job, how="", steps=job.step + 1), folder)  # one that ends well
            _spoil_file(folder, job)
        exit_code = _launch(job, folder)
        took_s = time.monotonic() - began_s
        told = (folder / "account").read_text()
        launches, back = len(_LAUNCH.findall(told)), told.count(" is set aside: the next launch ")
        return Outcome(job, exit_code, launches, back, took_s, told)


def _launch(job: Job, folder: Path) -> int | None:
    (folder / "script.json").write_text(json.dumps(asdict(job) | {"before": job.before}))
    kept = ("--state-dir=state", "--checkpoint-dir=saves") if job.where == "directory" else ()
    give_up = (f"--give-up-after={GIVE_UP_AFTER_S}",) if job.where == "a key of State" else ()
    local_nodes = 2 if job.where == "memory" else job.ranks
    command = (*LAGGARD, f"--local-nodes={local_nodes}", f"--nodes={job.ranks}", *kept, *give_up, PROGRAM)
    with (folder / "account").open("w") as account:
        return end_of(
            subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=account, stderr=account, env=environment()
            ),
            DEADLINE_S,
        )


def _spoil_file(folder: Path, job: Job) -> None:
    """Damage a file of the newest checkpoint."""
    mark = f'"step":{job.step}'.encode()
    files = [each for each in folder.glob("saves/*/*.shard") if mark in each.read_bytes()[: 1 << 14]]
    spoiled = spoil_bytes(files[0].read_bytes(), job.how, random.Random(job.number))
    files[0].write_bytes(spoiled)
