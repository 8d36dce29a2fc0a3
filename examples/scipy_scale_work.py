"""Image convolution by a pool of workers: how long an iteration takes, and how much the time varies.

    laggard --local-nodes=2 --telemetry-level=3 examples/scipy_scale_work.py --dragon --size 64 --mem 262144

Without ``--dragon`` (or ``--distributed``) the workers are processes on this node; with it they are spread over the
job's nodes. Nothing else differs. Measurements are sent as metrics at two levels: see :func:`run`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from laggard import Job, NotInJobError, Telemetry

try:
    from scipy.signal import convolve2d
except ModuleNotFoundError:
    sys.exit("this example needs scipy: pip install '.[examples]'")

FILTER_SIZE = 4

Work = tuple[NDArray[np.uint8], NDArray[np.float64], float]
"""An image, ``(size, size)``; a filter, ``(4, 4)``; for how many seconds to work on them."""


def parse_arguments(description: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; refuse invalid values in one line."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--num_workers", type=int, default=4, help="workers in the pool (default: %(default)s)")
    add("--iterations", type=int, default=10, help="measured iterations (default: %(default)s)")
    add("--burns", type=int, default=2, help="warm-up iterations before them (default: %(default)s)")
    add("--distributed", "--dragon", action="store_true", help="spread the workers over the nodes of the job")
    add("--size", type=int, default=1000, help="rows and columns of an image (default: %(default)s)")
    add(
        "--mem",
        type=int,
        default=512 << 20,
        help="bytes of all images, one per pixel (default: %(default)s)",
    )
    add(
        *("--work_time", "--runtime"),
        type=float,
        default=0.0,
        help="minimum seconds of work per image (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    for name, least in {"num_workers": 1, "iterations": 1, "burns": 0, "size": FILTER_SIZE, "work_time": 0}.items():
        if getattr(given, name) < least:
            parser.exit(2, f"--{name} {getattr(given, name)} is too small: give at least {least}\n")
    if given.mem < given.size**2:
        parser.exit(2, f"--mem {given.mem} holds no image of --size {given.size}: give at least {given.size**2}\n")
    free = psutil.virtual_memory().available
    if 2 * given.mem > free:  # the images, and a copy of them being sent to the workers
        parser.exit(2, f"--mem {given.mem} is too much for this node: at most {free // 2} are possible\n")
    return given


def convolve(work: Work) -> NDArray[np.float64]:
    """Filter an image repeatedly until the time is up, and return every fifth pixel."""
    image, kernel, work_time_s = work
    begun_s = time.perf_counter()
    while True:
        filtered: NDArray[np.float64] = convolve2d(image.astype(float), kernel)[::5, ::5]
        if time.perf_counter() - begun_s >= work_time_s:
            return filtered


def draw_images(given: argparse.Namespace) -> list[Work]:
    """Return the work of one iteration: images that fill the requested memory, each with its filter."""
    random = np.random.default_rng(1)

    def draw() -> Work:
        image = random.integers(0, 256, (given.size, given.size), dtype=np.uint8)
        return image, random.normal(size=(FILTER_SIZE, FILTER_SIZE)), given.work_time

    return [draw() for _ in range(given.mem // given.size**2)]


def open_pool(given: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return a pool of workers; both kinds have the same methods.

    Raises
    ------
    NotInJobError
        If the job's nodes are requested outside a job.
    """
    if not given.distributed:
        print("using multiprocessing on this node", flush=True)
        # Forked from a process that has the libraries loaded: hundreds of workers take seconds, and share the memory.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scipy.signal", "laggard.resilience.job", "laggard.telemetry.sending.sender"])
        # Ctrl-C is for us alone: the workers inherit that it is blocked, and we act on it once they have been started.
        pressed: list[int] = []
        handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
        resource_tracker.ensure_running()  # now, since its start unblocks Ctrl-C
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        local = context.Pool(given.num_workers)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, handler)
        if pressed:
            local.terminate()
            raise KeyboardInterrupt
        return local
    nodes = Job.current(local=False).nodes
    import ray
    from ray.util.multiprocessing import Pool

    ray.init()
    processors = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    print(f"using Ray on {', '.join(node.hostname for node in nodes)}", flush=True)
    processes = min(given.num_workers, processors)
    if given.num_workers > processes:
        print(f"{given.num_workers} workers are threads of {processes} processes: the job has {processors} CPUs")
    threads = math.ceil(given.num_workers / processes)
    options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": threads}
    pool: AbstractContextManager[Any] = Pool(processes, ray_remote_args=options)
    return pool


def run(
    given: argparse.Namespace,
    function: Callable[[Work], object] = convolve,
    after: Callable[[int], None] | None = None,
) -> None:
    """Filter the images as many times as requested, and print how long that takes.

    Parameters
    ----------
    given
        The command line.
    function
        What the workers do with an image.
    after
        Called after each iteration with its number.
    """
    telemetry = Telemetry()
    times_s = []
    begun_s = time.perf_counter()
    with open_pool(given) as pool:
        telemetry.add_data("pool_start_time", time.perf_counter() - begun_s)
        work = draw_images(given)
        # Ray's pool would divide the work among its processes, however many threads each of them has.
        chunksize = math.ceil(len(work) / (4 * given.num_workers))
        print(f"Number of images: {len(work)}")
        print(f"Number of workers: {given.num_workers}", flush=True)
        for iteration in range(given.iterations + given.burns):
            begun_s = time.perf_counter()
            pool.map(function, work, chunksize)
            times_s.append(time.perf_counter() - begun_s)
            telemetry.add_data("iteration_time", times_s[-1])  # from --telemetry-level=1 on
            telemetry.add_data("iteration", iteration, telemetry_level=3)  # only from --telemetry-level=3 on
            print(f"Time for iteration {iteration} is {times_s[-1]} seconds", flush=True)
            if after is not None:
                after(iteration)
    print(f"Average time: {np.mean(times_s[given.burns :]):.2f} second(s)")
    print(f"Standard deviation: {np.std(times_s[given.burns :]):.2f} second(s)")


if __name__ == "__main__":
    try:
        run(parse_arguments("Filter images with a pool of workers, and time it."))
    except NotInJobError as error:
        sys.exit(f"--distributed needs the nodes of a job: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
