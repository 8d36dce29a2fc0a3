"""A job that survives its slow GPUs: eigenvalues of random matrices, one worker per device, all state in State.

    laggard --local-nodes=3 --nodes=2 --virtual-gpus=2 --telemetry-level=3 \
        --resilient --exhaust-resources examples/slow_gpu.py --plot

Each rank draws Wigner matrices of its own size and collects their eigenvalues. A thrasher loads one device of a node
that is not the primary; the SlowGPUDetector accuses that node, and laggard relaunches this program without it. Each
launch resumes from State, so in the end every rank has done exactly its iterations, whatever happened in between.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from laggard import FencedError, Job, NotInJobError, SlowGPUDetector, State, Telemetry, local_device, node_strategy

PLOT_FILE = Path("eigvals.png")
THRASHER_SIZE = 1500
PROGRESS_INTERVAL_S = 0.5


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; refuse invalid values in one line."""
    parser = argparse.ArgumentParser(description="Eigenvalues of random matrices, on devices that may be slow.")
    parser.add_argument("--num_iters", type=int, default=2500, help="iterations of each rank (default: %(default)s)")
    parser.add_argument("--min_size", type=int, default=100, help="smallest matrix (default: %(default)s)")
    parser.add_argument("--max_size", type=int, default=160, help="largest matrix (default: %(default)s)")
    parser.add_argument(
        "--collection_rate", type=float, default=1.0, help="seconds between probes (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of sizes and matrices (default: %(default)s)")
    parser.add_argument("--no-thrash", action="store_true", help="load no device: nothing should be flagged")
    parser.add_argument("--thrash-primary", action="store_true", help="load a device of the primary, and no other")
    parser.add_argument("--plot", action="store_true", help=f"write the eigenvalues' histogram to {PLOT_FILE}")
    given = parser.parse_args(arguments)
    for name, least in {"num_iters": 1, "min_size": 1, "max_size": given.min_size, "seed": 0}.items():
        if getattr(given, name) < least:
            parser.exit(2, f"--{name} {getattr(given, name)} is too small: give at least {least}\n")
    if given.plot and find_spec("matplotlib") is None:
        parser.exit(2, "--plot needs Matplotlib: pip install 'laggard[plot]'\n")
    if not given.collection_rate > 0:
        parser.exit(2, f"--collection_rate {given.collection_rate} is not a valid interval: give seconds above 0\n")
    return given


@ray.remote(num_gpus=1)
class Worker:
    """Computes some of the ranks on the device that it was assigned."""

    def run(self, ranks: Sequence[int]) -> None:
        """Bring each rank to its number of iterations; every iteration is one transaction."""
        state = State.current()
        device = local_device()
        num_iters = state["num_iters"]
        try:
            for iteration in range(num_iters):
                for rank in ranks:
                    if state[f"iterations/{rank}"] <= iteration:
                        size = state[f"size/{rank}"]
                        matrix = wigner_matrix(size, [state["seed"], rank, iteration])
                        eigenvalues = device.run(functools.partial(eigenvalues_on, device.array_module, matrix))
                        with state.transaction() as transaction:
                            transaction[f"iterations/{rank}"] = iteration + 1
                            transaction.append(f"eigenvalues/{size}", eigenvalues)
        except FencedError:
            return  # a later launch resumes from here


def wigner_matrix(size: int, seed: Sequence[int]) -> NDArray[np.float64]:
    """Return a symmetric random matrix, ``(size, size)``, whose eigenvalues fill [-1, 1] as the matrix grows."""
    square: NDArray[np.float64] = np.random.default_rng(seed).standard_normal((size, size))
    return (square + square.T) / float(np.sqrt(8 * size))


def eigenvalues_on(array_module: Any, matrix: NDArray[np.float64]) -> Any:
    """Return the eigenvalues, computed where the array module computes, in the host's memory."""
    values = array_module.linalg.eigvalsh(array_module.asarray(matrix))
    return values.get() if hasattr(values, "get") else values  # CuPy: copy to the host


@ray.remote(num_cpus=0)
def thrash() -> None:
    """Load this process's device with large matrix products until the launch is over."""
    telemetry = Telemetry()
    device = local_device()
    ones = device.array_module.ones((THRASHER_SIZE, THRASHER_SIZE), dtype="float32")

    def multiply_forever() -> None:
        while True:
            begun_s = time.perf_counter()
            device.run(lambda: ones @ ones)
            taken_s = time.perf_counter() - begun_s
            telemetry.add_data("gpu-thrasher-time", taken_s, telemetry_level=3, tagk="gpu", tagv=device.gpu)

    # One product runs while the next one waits, so that the device is never idle.
    threading.Thread(target=multiply_forever, daemon=True).start()
    multiply_forever()


def prepare(state: State, arguments: argparse.Namespace, n_ranks: int) -> None:
    """Draw each rank's matrix size, in the first launch."""
    generator = np.random.default_rng(arguments.seed)
    with state.transaction() as transaction:
        transaction["ranks"] = n_ranks
        transaction["num_iters"] = arguments.num_iters
        transaction["seed"] = arguments.seed
        for rank in range(n_ranks):
            transaction[f"size/{rank}"] = int(generator.integers(arguments.min_size, arguments.max_size + 1))
            transaction[f"iterations/{rank}"] = 0


def start_workers(n_devices: int, n_ranks: int) -> list[Any]:
    """Start one worker per device and distribute the ranks among them."""
    return [Worker.remote().run.remote(list(range(worker, n_ranks, n_devices))) for worker in range(n_devices)]  # type: ignore[attr-defined]


@contextlib.contextmanager
def thrasher(job: Job, *, on_primary: bool) -> Iterator[None]:
    """Load device 0 of the last node, unless only the primary is left; or that of the primary, while it is in use."""
    victim = job.nodes[0 if on_primary else -1]
    if (victim == job.primary) is not on_primary or (on_primary and len(job.nodes) == 1):
        yield
        return
    device = {"env_vars": {"CUDA_VISIBLE_DEVICES": victim.devices[0]}}
    thrashing = thrash.options(scheduling_strategy=node_strategy(victim), runtime_env=device).remote()
    try:
        yield
    finally:  # also when laggard asks this launch to end: otherwise Ray reports the task as failed
        ray.cancel(thrashing, force=True)


def wait_for(running: list[Any], state: State, n_ranks: int) -> None:
    """Wait for the workers, showing their progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("iterations", total=n_ranks * state["num_iters"])
        while running:
            done, running = ray.wait(running, timeout=PROGRESS_INTERVAL_S)
            ray.get(done)  # a worker's error is ours
            progress.update(bar, completed=sum(state[f"iterations/{rank}"] for rank in range(n_ranks)))


def report(state: State) -> bool:
    """Print how much was done, and whether that is exactly what was requested."""
    ranks = range(state["ranks"])
    iterations = [state[f"iterations/{rank}"] for rank in ranks]
    expected = Counter(dict.fromkeys(sizes(state), 0))
    for rank in ranks:
        expected[state[f"size/{rank}"]] += state[f"size/{rank}"] * state["num_iters"]
    found = {size: sum(map(len, state[f"eigenvalues/{size}"])) for size in expected}
    complete = iterations == [state["num_iters"]] * len(ranks) and found == expected
    print(f"iterations per rank: {iterations}, expected {state['num_iters']} each")
    print(f"eigenvalues by matrix size: {', '.join(f'{size}: {number}' for size, number in found.items())}")
    words = "all there, none twice" if complete else "WRONG"
    print(f"eigenvalues: {sum(found.values())}, expected {expected.total()}: {words}")
    return complete


def sizes(state: State) -> list[int]:
    """Return the sizes of the matrices; two ranks may have drawn the same."""
    return sorted({state[f"size/{rank}"] for rank in range(state["ranks"])})


def plot(state: State) -> None:
    """Draw the eigenvalues' histogram and the semicircle law over it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    values = np.concatenate([part for size in sizes(state) for part in state[f"eigenvalues/{size}"]])
    x = np.linspace(-1, 1, 400)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    axes.hist(values, bins=120, density=True, color="#7aa6c2", label=f"{len(values):,} eigenvalues")
    axes.plot(x, 2 / np.pi * np.sqrt(1 - x**2), color="#c0392b", linewidth=2, label="semicircle law")
    axes.set(xlabel="eigenvalue", ylabel="density", title="Eigenvalues of Wigner matrices")
    axes.legend()
    figure.savefig(PLOT_FILE, dpi=120)
    print(f"wrote {PLOT_FILE}")


def main() -> int:
    """Run one launch of the job."""
    arguments = parse_arguments()
    job = Job.current(local=False)
    state = State.current()
    n_devices = sum(len(node.devices) for node in job.nodes)
    if n_devices == 0:
        print("no devices: run on a machine with GPUs, or with laggard --virtual-gpus=2", file=sys.stderr)
        return 1
    if "ranks" not in state:
        prepare(state, arguments, n_ranks=n_devices)
    n_ranks = state["ranks"]
    nodes = "node" if len(job.nodes) == 1 else "nodes"
    print(f"launch {job.launch}: {n_ranks} ranks on {n_devices} devices of {len(job.nodes)} {nodes}", flush=True)

    ray.init()
    thrashing = contextlib.nullcontext() if arguments.no_thrash else thrasher(job, on_primary=arguments.thrash_primary)
    # A job this short cannot wait until a slow device has cost as much as a relaunch: it wants one at once.
    with SlowGPUDetector(arguments.collection_rate, state=state, restart_cost=0), thrashing:
        running = start_workers(n_devices, n_ranks)
        wait_for(running, state, n_ranks)
    if arguments.plot:
        plot(state)
    return 0 if report(state) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotInJobError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
