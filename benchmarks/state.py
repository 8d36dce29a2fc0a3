"""State compared with the plain Redis client and with NumPy's files: large arrays and small transactions.

The candidates take turns, array by array and transaction by transaction, so that other load on the machine affects them
equally; the tables show medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import redis
from numpy.typing import NDArray

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.kvstore.values.codec import encode

__all__ = ["main"]

ARRAY_BYTES = 64 << 20
APPEND_BYTES = 64 << 10
Array = NDArray[np.float32]
Times = defaultdict[str, list[float]]
T = TypeVar("T")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks state", description=__doc__)
    parser.add_argument(
        "--gib", type=float, default=1.0, help="amount of data to save and restore (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of everything (default: %(default)s)")
    parser.add_argument(
        "--transactions", type=int, default=500, help="small transactions per repetition (default: %(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="directory for the data of servers and files (default: a temporary one)"
    )
    options = parser.parse_args(argv)

    times: Times = defaultdict(list)
    for repetition in range(options.repeats):
        arrays = make_arrays(options.gib, seed=repetition)
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            with clients(Path(folder) / "large", times) as (raw, state):
                large(raw, state, Path(folder), arrays, times)
            with clients(Path(folder) / "small", times) as (raw, state):
                small(raw, state, options.transactions, times)
    report(times)
    return 0


def make_arrays(gib: float, seed: int) -> list[Array]:
    generator = np.random.default_rng(seed)
    count = max(1, round(gib * (1 << 30) / ARRAY_BYTES))
    return [generator.random(ARRAY_BYTES // 4, dtype=np.float32) for _ in range(count)]


@contextmanager
def clients(directory: Path, times: Times) -> Iterator[tuple[redis.Redis, State]]:
    """Start a server, and connect to it with the plain client and with State."""
    start = time.perf_counter()
    with StateServer.start(directory, job="bench") as server:
        times["start"].append(time.perf_counter() - start)
        endpoint = server.endpoint
        with (
            redis.Redis(host=endpoint.host, port=endpoint.port, password=endpoint.password) as raw,
            endpoint.connect() as client,
        ):
            begin_launch(client, endpoint, 0)
            yield raw, State(client, endpoint, 0)


def clock(times: Times, name: str, work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    times[name].append(time.perf_counter() - start)
    return result


def large(raw: redis.Redis, state: State, folder: Path, arrays: Sequence[Array], times: Times) -> None:
    for n, array in enumerate(arrays):
        ready = array.tobytes()
        clock(times, "raw save", lambda: raw.set(f"raw{n}", ready))  # noqa: B023
        clock(times, "State save", lambda: state.update({f"w{n}": array}))  # noqa: B023
        clock(times, "numpy save", lambda: save_file(folder / f"{n}.npy", array))  # noqa: B023
    for n, array in enumerate(arrays):
        clock(times, "raw restore", lambda: raw.get(f"raw{n}"))  # noqa: B023
        restored = clock(times, "State restore", lambda: state[f"w{n}"])  # noqa: B023
        clock(times, "numpy restore", lambda: np.load(folder / f"{n}.npy"))  # noqa: B023
        if not np.array_equal(restored, array):
            raise AssertionError("State restored a different array than it had saved")
        clock(times, "checksum", lambda: zlib.crc32(array.view(np.uint8).data))  # noqa: B023
        clock(times, "copy", array.copy)


def save_file(path: Path, array: Array) -> None:
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())


def small(raw: redis.Redis, state: State, count: int, times: Times) -> None:
    data = np.zeros(APPEND_BYTES // 4, np.float32)
    ready = data.tobytes()

    def raw_transaction() -> None:
        with raw.pipeline() as pipe:
            pipe.incr("n")
            pipe.rpush("log", ready)
            pipe.execute()

    def raw_reading() -> None:
        with raw.pipeline() as pipe:
            pipe.watch("n")  # type: ignore[no-untyped-call]
            n = int(pipe.get("n") or 0)
            pipe.multi()
            pipe.set("n", n + 1)
            pipe.rpush("log", ready)
            pipe.execute()

    def state_transaction() -> None:
        with state.transaction() as t:
            t.increment("n")
            t.append("log", data)

    def state_reading() -> None:
        with state.transaction() as t:
            t["n"] = t.get("n", 0) + 1
            t.append("log", data)

    raw.config_resetstat()
    for _ in range(count):
        clock(times, "raw transaction", raw_transaction)
        clock(times, "raw, reading transaction", raw_reading)
        clock(times, "State transaction", state_transaction)
        clock(times, "State, reading transaction", state_reading)
        clock(times, "read", lambda: state["n"])
        clock(times, "encode", lambda: zlib.crc32(encode("log", data).detached().joined()))
    for command, spent in cast("Any", raw.info("commandstats")).items():
        if command in {"cmdstat_evalsha", "cmdstat_exec"}:
            times[command].append(spent["usec_per_call"] / 1e6)


def report(times: Times) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    per_gb = 1e9 / ARRAY_BYTES
    print(f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, appendfsync always")
    print(f"medians of {len(times['raw save'])} arrays of {ARRAY_BYTES >> 20} MiB\n")
    print(f"{'':14}{'save s/GB':>10}{'(quartiles)':>14}{'restore s/GB':>14}{'(quartiles)':>14}")
    for name in ("raw", "State", "numpy"):
        cells = ""
        for what, width in (("save", 10), ("restore", 14)):
            low, middle, high = (per_gb * value for value in quartiles(times[f"{name} {what}"]))
            cells += f"{middle:{width}.2f}{f'{low:.2f}-{high:.2f}':>14}"
        print(f"{name:14}{cells}")
    speed = [median[f"raw {what}"] / median[f"State {what}"] for what in ("save", "restore")]
    print(f"{'State / raw':14}{speed[0]:10.0%}{'':14}{speed[1]:14.0%}   (speed; higher is better)\n")
    print(f"within State: checksum {per_gb * median['checksum']:.2f} s/GB each way,", end=" ")
    print(f"copy into the array {per_gb * median['copy']:.2f} s/GB on restore")
    print(f"server start: {1e3 * median['start']:.0f} ms\n")
    print(f"{'transaction':14}{'median ms':>10}{'(quartiles)':>14}")
    for name in ("raw", "State", "raw, reading", "State, reading"):
        low, middle, high = (1e3 * value for value in quartiles(times[f"{name} transaction"]))
        print(f"{name:14}{middle:10.2f}{f'{low:.2f}-{high:.2f}':>14}")
    for how in ("", ", reading"):
        ratio, fast = ratios(times[f"State{how} transaction"], times[f"raw{how} transaction"])
        print(f"State / raw{how}: {ratio:.2f}, at the lower quartile {fast:.2f}   (time; lower is better)")
    parts = {
        "reading the counter": median["read"],
        "encoding and checksum": median["encode"],
        "the commit in the server": median["cmdstat_evalsha"],
        "raw's commit in the server": median["cmdstat_exec"],
    }
    print("breakdown in ms: " + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in parts.items()))


def ratios(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return the ratio of the medians, and that of the lower quartiles, which other load affects less."""
    (fast_ours, ours_s, _), (fast_theirs, theirs_s, _) = quartiles(ours), quartiles(theirs)
    return ours_s / theirs_s, fast_ours / fast_theirs


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
