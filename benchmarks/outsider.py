"""What an outsider costs a job: steps per second while somebody at another address scans, holds or floods its ports.

The job has two virtual nodes. All its processes share one processor, so that whatever an attack costs them is missing
from the program; the outsider has the other ones. With ``--program-alone`` the program has that processor to itself, as
on a node that has some to spare, and everything else of the job shares the others with the outsider. The outsider's
connections come from an address that no node has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self, cast

import psutil

from benchmarks import outsider_attack
from benchmarks.machine import description
from benchmarks.outsider_job import COUNTER, END
from benchmarks.tables import table
from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

__all__ = ["main"]

OUTSIDERS_ADDRESS = "127.1.1.1"
N_NODES = 2
N_FIRST_STEPS = 10
SETTLE_S = 0.5
# What is in the command line of whatever listens.
OWNERS = {
    "kvstore.shards.server": "shard servers",
    "redis-server": "state server",
    "valkey-server": "state server",
    "agent.detect": "link probes",
    "telemetry": "telemetry server",
}
ALL = "all at once"
PROGRAM = "outsider_job.py"

Place = tuple[str, int]


class Block(NamedTuple):
    """What an attack changed: steps per second, and seconds per second on a processor of what is not the program."""

    change: float
    processor_share: float
    connections_per_s: float


class Outsider:
    """The process that attacks, on these processors."""

    def __init__(self, processors: Sequence[int]) -> None:
        pinned = ["taskset", "--cpu-list", ",".join(map(str, processors))] if processors else []
        command = [*pinned, sys.executable, "-I", outsider_attack.__file__, OUTSIDERS_ADDRESS]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def attack(self, what: str, seconds: float, places: Sequence[Place]) -> None:
        """Begin an attack."""
        order = cast("IO[str]", self._process.stdin)
        order.write(json.dumps([what, seconds, places]) + "\n")
        order.flush()

    def connections(self) -> int:
        """Wait until the attack is over, and return how many connections came about."""
        return int(cast("IO[str]", self._process.stdout).readline())


class Rates(NamedTuple):
    """Of a stretch of time, per second."""

    steps: float
    processor: float


class Watched:
    """The job's program and its other processes, from outside."""

    def __init__(self, folder: Path, job: RunningJob) -> None:
        self._files = _step_files(folder)
        # What writes its title where its environment was is found as a child.
        found = {*job.processes(), *psutil.Process(job.process.pid).children()}
        self._ranks = [process for process in found if PROGRAM in " ".join(process.cmdline())]
        self._servers = found.difference(self._ranks)

    def rates(self, seconds: float) -> Rates:
        """Look on for so long."""
        began, began_s = self._look(), time.perf_counter()
        time.sleep(seconds)
        took_s = time.perf_counter() - began_s
        return Rates(*((now - before) / took_s for now, before in zip(self._look(), began, strict=True)))

    def _look(self) -> tuple[float, float]:
        processor_s = 0.0
        for process in self._servers:
            with contextlib.suppress(psutil.Error):
                processor_s += sum(process.cpu_times()[:2])
        return sum(_steps(self._files)), processor_s

    def separate(self, own: int, others: Sequence[int]) -> None:
        """Leave a processor to the program, and the other ones to the rest of the job."""
        for processes, processors in ((self._ranks, [own]), (self._servers, others)):
            for process in processes:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    for thread in process.threads():
                        os.sched_setaffinity(thread.id, processors)

    def ports(self) -> dict[str, list[Place]]:
        """Return where the job listens, by what does."""
        found: dict[str, list[Place]] = {}
        for process in self._servers:
            with contextlib.suppress(psutil.Error):
                listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
                line = " ".join(process.cmdline())
                owner = next((owner for word, owner in OWNERS.items() if word in line), line)
                found.setdefault(owner, []).extend((each.laddr.ip, each.laddr.port) for each in listening)
        return {owner: sorted(set(places)) for owner, places in sorted(found.items()) if places}


def _step_files(folder: Path) -> list[Path]:
    return [folder / f"steps{rank}" for rank in range(N_NODES)]


def _steps(files: Sequence[Path]) -> list[int]:
    return [COUNTER.unpack(file.read_bytes())[0] for file in files]


def main(argv: list[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks outsider", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of blocks of each attack (default: %(default)s)")
    parser.add_argument("--block", type=float, default=2.0, help="seconds of each block (default: %(default)s)")
    parser.add_argument("--attacks", default="scan,hold,flood", help="which (default: %(default)s)")
    parser.add_argument("--only", default="", help="only the ports whose owner begins so")
    parser.add_argument("--program-alone", action="store_true", help="leave a processor to the program")
    options = parser.parse_args(argv)
    print(description(), flush=True)
    own, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, {own})
    with _job() as job, Outsider(others) as outsider:
        if options.program_alone and others:
            job.separate(own, others)
        of_job = "program" if options.program_alone else "job"
        print(f"the {of_job} on processor {own}, the outsider on {others or own}")
        ports = job.ports()
        for owner, places in ports.items():
            print(f"{owner}: {', '.join(f'{address}:{port}' for address, port in places)}", flush=True)
        rows = []
        everything = [place for places in ports.values() for place in places]
        for what in options.attacks.split(","):
            wanted = {ALL: everything} if what == "scan" else {**ports, ALL: everything}
            for owner, places in wanted.items():
                if not owner.startswith(options.only):
                    continue
                blocks = [_pair(job, outsider, what, options.block, places) for _ in range(options.repeats)]
                rows.append(_row(what, owner, blocks))
                print(
                    f"{what}, {owner}: {rows[-1][2]}/s, {rows[-1][3]}, {rows[-1][5]} of a processor",
                    file=sys.stderr,
                    flush=True,
                )
    head = ("attack", "ports", "connections per second", "steps per second", "worst", "processor time of the servers")
    print("\n".join(["", *table(head, rows)]))
    return 0


def _pair(job: Watched, outsider: Outsider, what: str, seconds: float, places: Sequence[Place]) -> Block:
    """Count undisturbed, then under an attack, then undisturbed again."""
    before = job.rates(seconds / 2)
    outsider.attack(what, seconds + SETTLE_S, places)
    attacked = job.rates(seconds)
    n_connections = outsider.connections()
    time.sleep(SETTLE_S)
    after = job.rates(seconds / 2)
    return Block(
        2 * attacked.steps / (before.steps + after.steps) - 1,
        attacked.processor - (before.processor + after.processor) / 2,
        n_connections / (seconds + SETTLE_S),
    )


def _row(what: str, owner: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    changes = [block.change for block in blocks]
    rate = statistics.median(block.connections_per_s for block in blocks)
    share = statistics.median(block.processor_share for block in blocks)
    return what, owner, f"{rate:,.0f}", f"{statistics.median(changes):+.0%}", f"{min(changes):+.0%}", f"{share:+.1%}"


@contextlib.contextmanager
def _job() -> Iterator[Watched]:
    """Have the job run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _step_files(folder)
        for file in files:
            file.write_bytes(COUNTER.pack(0))
        options = (f"--local-nodes={N_NODES}", "--virtual-gpus=1", "--detect=slow-link", "--telemetry-level=2")
        program = ("--per-node", sys.executable, str(Path(__file__).with_name(PROGRAM)), name)
        job = RunningJob(folder, name, *options, *program)
        try:
            wait_until(lambda: job.process.poll() is not None or _listens(folder, job))
            if job.process.poll() is None:
                yield Watched(folder, job)
                (folder / END).touch()
            if job.finish() != 0 or "launch    1" in job.account:
                raise RuntimeError(f"the job did not go on as it began:\n{job.everything()}")
        finally:
            job.end()


def _listens(folder: Path, job: RunningJob) -> bool:
    """Whether the program works, and all nodes watch their links."""
    works = min(_steps(_step_files(folder))) > N_FIRST_STEPS
    return works and len(Watched(folder, job).ports().get("link probes", [])) >= N_NODES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
