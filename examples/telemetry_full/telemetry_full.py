"""Ensembles of PyTorch and SciPy tasks across the nodes, with a live view of the load.

    laggard --local-nodes=2 --virtual-gpus=2 examples/telemetry_full/telemetry_full.py --epochs 2 --mem 16777216

========== ========================================================================
mnist.py   learns to read digits, once for each learning rate: one worker per device
conv.py    filters images: a pool of workers
telem.py   one monitor per node, and one process that post-processes their readings
========== ========================================================================
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray

try:
    import conv
    import mnist
    import telem
except ModuleNotFoundError as missing:
    sys.exit(f"this example needs {missing.name}: pip install '.[examples,torch]'")

from laggard import Job, NotInJobError


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; refuse invalid values in one line."""
    parser = argparse.ArgumentParser(
        description="SciPy and MNIST jobs with telemetry.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--scipy_workers", type=int, default=2, help="workers that filter images")
    add("--mnist_workers", type=int, default=2, help="learning rates, from 0.5 to 1.5, each with its worker")
    add("--bars", action="store_true", help="show the telemetry as bars")
    add("--no-cuda", action="store_true", help="train on processors")
    add("--size", type=int, default=1024, help="rows and columns of an image")
    add("--mem", type=int, default=1 << 30, help="total size of the images in bytes, one per pixel")
    add("--batch-size", type=int, default=64, metavar="N", help="digits in a training step")
    add("--test-batch-size", type=int, default=1000, metavar="N", help="digits in a testing step")
    add("--epochs", type=int, default=14, metavar="N", help="how often to go through the digits")
    add("--gamma", type=float, default=0.7, metavar="M", help="factor on the learning rate after each epoch")
    add("--seed", type=int, default=1, metavar="S", help="seed of the networks' first weights")
    add("--data", type=Path, metavar="DIR", help="folder of MNIST's four files; without it scikit-learn's digits")
    add("--download", action="store_true", help=f"fetch MNIST (11 MB, {mnist.SOURCE}) into --data first")
    given = parser.parse_args(arguments)
    least = {"scipy_workers": 1, "mnist_workers": 2, "size": 4, "batch_size": 1, "test_batch_size": 1, "epochs": 1}
    for name, value in least.items():
        if getattr(given, name) < value:
            option = name if name.endswith("workers") else name.replace("_", "-")
            parser.exit(2, f"--{option} {getattr(given, name)} is too small: give at least {value}\n")
    if given.mem < given.size**2:
        parser.exit(2, f"--mem {given.mem} holds no image of --size {given.size}: give at least {given.size**2}\n")
    if given.download and given.data is None:
        parser.exit(2, "--download needs a folder to put MNIST into: add --data DIR\n")
    return given


def main() -> int:
    """Run the tasks, monitor the nodes, and print the result of each learning rate."""
    given = parse_arguments()
    job = Job.current(local=False)
    view = telem.Bars() if given.bars else telem.Lines()
    if given.download:
        mnist.download(given.data)
    digits = mnist.load_digits(given.data)
    ray.init()
    processors = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    n_devices = 0 if given.no_cuda else sum(len(node.devices) for node in job.nodes)
    n_images = given.mem // given.size**2
    print(f"Hello from main process {job.primary.hostname}.")
    print("using Ray")
    print(f"Number of nodes: {len(job.nodes)}")
    print(f"Number of scipy workers: {given.scipy_workers}")
    print(f"Number of MNIST workers: {given.mnist_workers}, on {n_devices or 'no'} devices")
    print(f"Number of images: {n_images}", flush=True)

    with telem.watched(job.nodes, view), conv.start_pool(given.scipy_workers, processors) as pool:
        view.say("Launching scipy and mnist jobs")
        chunksize = -(-n_images // (4 * given.scipy_workers))  # else Ray's pool counts processes, not their threads
        images = pool.map_async(conv.filter_image, [(seed, given.size) for seed in range(n_images)], chunksize)
        # num_gpus=1 gives each worker its own device; workers beyond the last device wait their turn.
        device = {"num_cpus": 0, "num_gpus": 1 if n_devices else 0}
        train = ray.remote(mnist.train).options(**device, scheduling_strategy="SPREAD")
        shared = ray.put(digits)
        rates = np.linspace(0.5, 1.5, given.mnist_workers).tolist()
        results = ray.get([train.remote(rate, given, shared) for rate in rates])
        images.get()
    for rate, loss, accuracy in results:
        print(f"Final test for learning rate {rate:g}: loss: {loss:.4f} accuracy: {accuracy:.2f}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (NotInJobError, mnist.DataError) as error:
        sys.exit(str(error))
    except ModuleNotFoundError as missing:
        sys.exit(f"these options need {missing.name}: pip install '.[examples,torch]'")
    except KeyboardInterrupt:
        sys.exit(130)
