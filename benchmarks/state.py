"""State beside the plain Redis client and beside NumPy's own files: large arrays, and small transactions.

Every repetition runs all candidates one after the other, each on a fresh server and a fresh directory, so that a busy
moment of the machine hits them alike; the table shows medians.
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
from typing import get_args

import numpy as np
import redis
from numpy.typing import NDArray

from kvstore.fence import begin_launch
from kvstore.server import Fsync, StateServer
from kvstore.state import State

__all__ = ["main"]

ARRAY_BYTES = 64 << 20
APPEND_BYTES = 64 << 10
Array = NDArray[np.float32]
Times = defaultdict[str, list[float]]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks state", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="how much to save and restore (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of everything (default: %(default)s)")
    parser.add_argument("--transactions", type=int, default=300, help="small ones a repetition (default: %(default)s)")
    parser.add_argument(
        "--fsync", choices=get_args(Fsync), default="always", help="the server's (default: %(default)s)"
    )
    parser.add_argument("--directory", type=Path, help="where servers and files keep their data (default: temporary)")
    options = parser.parse_args(argv)

    arrays = make_arrays(options.gib)
    times: Times = defaultdict(list)
    for _ in range(options.repeats):
        for candidate in (large_raw, large_state):
            with fresh_server(options.directory, options.fsync, times) as server:
                candidate(server, arrays, times)
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            large_numpy(Path(folder), arrays, times)
        parts_of_state(arrays, times)
        for small in (small_raw, small_state):
            with fresh_server(options.directory, options.fsync, times) as server:
                small(server, options.transactions, times)
    report(times, sum(array.nbytes for array in arrays) / 1e9, options.fsync)
    return 0


def make_arrays(gib: float) -> list[Array]:
    generator = np.random.default_rng(0)
    count = max(1, round(gib * (1 << 30) / ARRAY_BYTES))
    return [generator.random(ARRAY_BYTES // 4, dtype=np.float32) for _ in range(count)]


@contextmanager
def fresh_server(directory: Path | None, fsync: Fsync, times: Times) -> Iterator[StateServer]:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        start = time.perf_counter()
        with StateServer.start(Path(folder), job="bench", fsync=fsync) as server:
            times["start"].append(time.perf_counter() - start)
            yield server


def clock(times: Times, name: str, work: Callable[[], object]) -> None:
    start = time.perf_counter()
    work()
    times[name].append(time.perf_counter() - start)


def large_raw(server: StateServer, arrays: Sequence[Array], times: Times) -> None:
    """One SET and one GET an array, of bytes that are at hand already."""
    endpoint = server.endpoint
    ready = [array.tobytes() for array in arrays]
    with redis.Redis(host=endpoint.host, port=endpoint.port, password=endpoint.password) as client:
        client.ping()
        clock(times, "raw save", lambda: [client.set(f"w{n}", data) for n, data in enumerate(ready)])
        clock(times, "raw restore", lambda: [client.get(f"w{n}") for n in range(len(ready))])


def large_state(server: StateServer, arrays: Sequence[Array], times: Times) -> None:
    with server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        state = State(client, server.endpoint, 0)
        clock(times, "State save", lambda: assign(state, arrays))
        clock(times, "State restore", lambda: [state[f"w{n}"] for n in range(len(arrays))])
        if not all(np.array_equal(state[f"w{n}"], array) for n, array in enumerate(arrays)):
            raise AssertionError("State gave back other arrays than it was given")


def assign(state: State, arrays: Sequence[Array]) -> None:
    for n, array in enumerate(arrays):
        state[f"w{n}"] = array


def large_numpy(folder: Path, arrays: Sequence[Array], times: Times) -> None:
    clock(times, "numpy save", lambda: save_files(folder, arrays))
    clock(times, "numpy restore", lambda: [np.load(folder / f"{n}.npy") for n in range(len(arrays))])


def save_files(folder: Path, arrays: Sequence[Array]) -> None:
    for n, array in enumerate(arrays):
        with (folder / f"{n}.npy").open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())


def parts_of_state(arrays: Sequence[Array], times: Times) -> None:
    """Time what State does besides sending and receiving."""
    clock(times, "checksum", lambda: [zlib.crc32(array.view(np.uint8).data) for array in arrays])
    clock(times, "copy", lambda: [array.copy() for array in arrays])


def small_raw(server: StateServer, count: int, times: Times) -> None:
    endpoint = server.endpoint
    data = bytes(APPEND_BYTES)
    with redis.Redis(host=endpoint.host, port=endpoint.port, password=endpoint.password) as client:
        for _ in range(count):

            def transaction() -> None:
                with client.pipeline() as pipe:
                    pipe.incr("n").rpush("log", data).execute()

            clock(times, "raw transaction", transaction)


def small_state(server: StateServer, count: int, times: Times) -> None:
    data = np.zeros(APPEND_BYTES // 4, np.float32)
    with server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        state = State(client, server.endpoint, 0)
        for _ in range(count):

            def transaction() -> None:
                with state.transaction() as t:
                    t["n"] = t.get("n", 0) + 1
                    t.append("log", data)

            clock(times, "State transaction", transaction)


def report(times: Times, gigabytes: float, fsync: Fsync) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    spread = {name: f"{min(values) / gigabytes:.2f}-{max(values) / gigabytes:.2f}" for name, values in times.items()}
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    )
    print(f"{gigabytes:.2f} GB in arrays of {ARRAY_BYTES >> 20} MiB, appendfsync {fsync}\n")
    print(f"{'':16}{'save s/GB':>10}{'(range)':>14}{'restore s/GB':>14}{'(range)':>14}")
    for who in ("raw", "State", "numpy"):
        save, restore = f"{who} save", f"{who} restore"
        print(
            f"{who:16}{median[save] / gigabytes:10.2f}{spread[save]:>14}"
            f"{median[restore] / gigabytes:14.2f}{spread[restore]:>14}"
        )
    speed = [median[f"raw {what}"] / median[f"State {what}"] for what in ("save", "restore")]
    print(f"{'State / raw':16}{speed[0]:10.0%}{'':14}{speed[1]:14.0%}   (speed; higher is better)\n")
    print(f"within State: checksum {median['checksum'] / gigabytes:.2f} s/GB each way,", end=" ")
    print(f"copy into the array {median['copy'] / gigabytes:.2f} s/GB on restore\n")
    print(f"start of a server: {1e3 * median['start']:.0f} ms\n")
    print(f"{'small transaction':20}{'median ms':>10}{'95th ms':>10}")
    for who in ("raw", "State"):
        values = times[f"{who} transaction"]
        print(f"{who:20}{1e3 * median[f'{who} transaction']:10.2f}{1e3 * statistics.quantiles(values, n=20)[-1]:10.2f}")
    ratio = median["State transaction"] / median["raw transaction"]
    print(f"{'State / raw':20}{ratio:10.2f}            (time; lower is better)")
