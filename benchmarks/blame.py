"""Blame: jobs drawn at random from a mix of causes, each run for real on virtual nodes; what is decided against truth.

The program steps ten times a second, saves every four steps, and fails as its script says, often with words that do
not fit the cause. Which node is bad is known, and whether the job can go on at all. A job that cannot should end with
the program's exit code; any other should end with 0, and no node that is well should be put out of use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path

from tqdm import tqdm

from benchmarks.blame_jobs import CAUSES, Job, draw_job
from benchmarks.machine import description
from benchmarks.tables import table
from laggard.system.ports import port_for_later

SIDE_BY_SIDE = 2
# An end costs two hours where a start takes 100 s; here a start takes 2 s.
GIVE_UP_AFTER_S, BACKOFF_S = 120, 0.2
DEADLINE_S = 400.0
END_DEADLINE_S = 30.0
GIVEN_UP = 93
STEP_S = 0.1
UP_S = 8.0  # how long a service is there once the program runs
LAGGARD = (
    *(sys.executable, "-m", "laggard", "run", "--resilient", "--grace=2", "--report", "--report-dir=reports"),
    *(f"--give-up-after={GIVE_UP_AFTER_S}", f"--backoff={BACKOFF_S}", "--max-restarts-per-hour=1000"),
)
PROGRAM = str(Path(__file__).with_name("blame_program.py"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    job: Job
    exit_code: int | None  # None: it had to be stopped
    launches: int
    excluded: tuple[str, ...]  # the primary, too, if it goes on without its devices
    in_use: tuple[str, ...]  # at the end
    took_s: float
    account: str

    @property
    def wrongly_excluded(self) -> tuple[str, ...]:
        """The nodes that are well, but out of use."""
        return tuple(host for host in self.excluded if host not in self.job.bad)

    @property
    def is_wrong_end(self) -> bool:
        """Whether it should have gone on."""
        return self.job.can_go_on and self.exit_code != 0

    @property
    def is_missed_end(self) -> bool:
        """Whether it did not end although it should."""
        return not self.job.can_go_on and self.exit_code in (0, None)

    @property
    def is_miss(self) -> bool:
        """Whether something is to be looked at."""
        return bool(self.wrongly_excluded) or self.is_wrong_end or self.is_missed_end


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks blame", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same jobs again (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only this job of the seed's, with its account")
    parser.add_argument("--cause", default="", metavar="TEXT", help="only jobs with TEXT in their cause (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each job there, too")
    parser.add_argument("--list", action="store_true", help="print the jobs as lines of JSON, and run none")
    options = parser.parse_args(arguments)
    if not any(options.cause in cause for cause in CAUSES):
        parser.error(f"no cause has {options.cause!r} in its name; the causes are: {', '.join(CAUSES)}")
    drawn = (draw_job(options.seed, number) for number in count())
    jobs = list(islice((job for job in drawn if options.cause in job.cause), options.jobs))
    if options.only is not None:
        jobs = [draw_job(options.seed, options.only)]
    if options.list:
        print(*(json.dumps(asdict(job)) for job in jobs), sep="\n")
        return 0
    print(description(), flush=True)
    outcomes = []
    with (
        ThreadPoolExecutor(SIDE_BY_SIDE, "job") as side_by_side,
        tqdm(total=len(jobs), unit="job", disable=None) as bar,
    ):
        for outcome in side_by_side.map(run, jobs):
            outcomes.append(outcome)
            bar.update()
            if outcome.is_miss or options.only is not None:
                with tqdm.external_write_mode():
                    print(f"\nseed {options.seed}, {_said(outcome)}\n{outcome.account}", flush=True)
    print("", *_tables(outcomes), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    return 0


def _said(outcome: Outcome) -> str:
    wrong = [
        *(f"{host} is well and out of use" for host in outcome.wrongly_excluded),
        *(["it could go on"] if outcome.is_wrong_end else []),
        *(["it should have ended"] if outcome.is_missed_end else []),
    ]
    return f"{outcome.job}: ended with {outcome.exit_code}; {'; '.join(wrong) or 'as it should'}"


def _tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    head = (
        *("cause", "jobs", "wrong exclusions", "wrong ends", "ended with the program's code", "given up"),
        *("launches", "seconds", "the bad node out of use"),
    )
    by_cause = {cause: [each for each in outcomes if each.job.cause == cause] for cause in CAUSES}
    rows = [(cause, *_row(found)) for cause, found in by_cause.items() if found]
    yield from table(head, [*rows, ("all", *_row(outcomes))])
    able = [each for each in outcomes if each.job.can_go_on]
    nodes = sum(len(each.job.hosts) for each in outcomes)
    wrong_nodes = sum(len(each.wrongly_excluded) for each in outcomes)
    yield ""
    wrong_jobs = sum(bool(each.wrongly_excluded) for each in outcomes)
    yield (
        f"wrong exclusions: {wrong_nodes} of {nodes} nodes ({_share(wrong_nodes, nodes)}), in {wrong_jobs} of "
        f"{len(outcomes)} jobs ({_share(wrong_jobs, len(outcomes))})"
    )
    wrong_ends = sum(each.is_wrong_end for each in able)
    yield f"wrong ends: {wrong_ends} of {len(able)} jobs that could go on ({_share(wrong_ends, len(able))})"


def _row(outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    with_bad = [each for each in outcomes if each.job.bad]
    out = sum(not set(each.job.bad) <= set(each.in_use) for each in with_bad)
    codes = [each.exit_code for each in outcomes if not each.job.can_go_on]
    given_up = sum(each.exit_code == GIVEN_UP for each in outcomes)
    own = sum(code not in (0, None, GIVEN_UP) for code in codes)
    return (
        len(outcomes),
        sum(len(each.wrongly_excluded) for each in outcomes),
        sum(each.is_wrong_end for each in outcomes),
        f"{own} of {len(codes)}" if codes else "",
        given_up,
        f"{statistics.mean(each.launches for each in outcomes):.1f}",
        f"{statistics.mean(each.took_s for each in outcomes):.0f}",
        f"{out} of {len(with_bad)}" if with_bad else "",
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def run(job: Job) -> Outcome:
    """Run one job for real."""
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if job.cause == "outage":
            job = replace(job, port=port_for_later())
        (folder / "script.json").write_text(json.dumps(asdict(job)))
        began_s = time.monotonic()
        with _world(job, folder), (folder / "account").open("w") as account:
            process = subprocess.Popen(
                _command(job), cwd=folder, stdin=subprocess.DEVNULL, stdout=account, stderr=account, env=environment()
            )
            exit_code = end_of(process)
        return _read(job, folder, exit_code, time.monotonic() - began_s)


def _command(job: Job) -> Sequence[str]:
    return (
        *LAGGARD,
        *(f"--local-nodes={job.nodes + job.reserve}", f"--nodes={job.nodes}"),
        *(() if job.reserve else ("--exhaust-resources",)),
        *(("--per-device", f"--virtual-gpus={job.devices}") if job.devices else ("--per-node",)),
        PROGRAM,
    )


def environment() -> dict[str, str]:
    """Return the environment of a job that runs elsewhere."""
    path = os.pathsep.join(filter(None, [str(Path.cwd()), str(Path.cwd() / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def end_of(process: subprocess.Popen[bytes], deadline_s: float = DEADLINE_S) -> int | None:
    """Return the exit code of a job; None if it has to be stopped."""
    try:
        return process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends its nodes
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_DEADLINE_S)
        process.kill()
        return None


@contextlib.contextmanager
def _world(job: Job, folder: Path) -> Iterator[None]:
    """Do what happens outside the job: a service is away for a while, a process is killed."""
    acts: dict[str, Callable[[Job, Path, threading.Event], None]] = {"outage": _serve, "preemption": _kill_one}
    if job.cause not in acts:
        yield
        return
    end = threading.Event()
    thread = threading.Thread(target=acts[job.cause], args=(job, folder, end))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _wait_for(file: Path, end: threading.Event) -> None:
    while not (file.exists() and file.read_text()) and not end.wait(STEP_S):
        pass


def _kill_one(job: Job, folder: Path, end: threading.Event) -> None:
    """Kill a rank once, in the middle of its steps."""
    pid = folder / f"pid{job.rank}"
    _wait_for(pid, end)
    if not end.wait(job.step * STEP_S / 2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def _serve(job: Job, folder: Path, end: threading.Event) -> None:
    """Have the service there until the program has run for a while, away, and there again."""
    up, back = threading.Event(), threading.Event()

    def accept(until: threading.Event) -> None:
        with contextlib.ExitStack() as open_, socket.create_server(("127.0.0.1", job.port)) as server:
            server.settimeout(STEP_S / 2)
            while not until.is_set():
                with contextlib.suppress(TimeoutError):
                    open_.enter_context(server.accept()[0])

    first = threading.Thread(target=accept, args=(up,))
    first.start()
    _wait_for(folder / "pid0", end)
    end.wait(UP_S)
    up.set()
    first.join()
    end.wait(job.away_s)
    again = threading.Thread(target=accept, args=(back,))
    again.start()
    end.wait()
    back.set()
    again.join()


def _read(job: Job, folder: Path, exit_code: int | None, took_s: float) -> Outcome:
    [journal] = folder.glob("reports/*/job.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    launches = [each for each in records if each["is"] == "LaunchBegan"]
    last = launches[-1] if launches else {"nodes": job.hosts, "reserve": ()}
    # The primary is never excluded, but it may go on without its devices.
    excluded = [host for host in job.hosts if host not in last["nodes"] and host not in last["reserve"]]
    told = [f"{each['what']:<9} {each['text']}" for each in records if each["is"] == "Told" and each["what"] != "gap"]
    return Outcome(
        job,
        exit_code,
        len(launches),
        tuple(excluded),
        tuple(host for host in job.hosts if host in last["nodes"]),
        took_s,
        "\n".join(told),
    )
