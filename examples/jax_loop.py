"""A JAX program on every node, one process each, whose parameters are kept in State.

laggard --local-nodes=2 --resilient --per-node examples/jax_loop.py --fail-at=60
"""

from __future__ import annotations

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from laggard import Job, State

parser = argparse.ArgumentParser(description="Fit a line with JAX on all nodes.")
parser.add_argument("--steps", type=int, default=100, help="steps in all (default: %(default)s)")
parser.add_argument("--fail-at", type=int, metavar="STEP", help="where the last node fails, in the first launch")
given = parser.parse_args()

rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
# A process that fails waits for the others before it ends: by default for five minutes.
jax.distributed.initialize(address, nodes, rank, shutdown_timeout_seconds=5)
job, state = Job.current(), State.current()
step, weights = state.get("step", 0), jnp.asarray(state.get("weights", np.zeros(2, "float32")))
if rank == 0:
    print(f"launch {job.launch}: {nodes} nodes, from step {step} of {given.steps}", flush=True)


gradient = jax.jit(jax.grad(lambda w, x: jnp.mean((w[0] * x + w[1] - (3 * x + 1)) ** 2)))  # of a line's error


while step < given.steps:
    x = jax.random.normal(jax.random.key(1000 * step + rank), (64,))
    of_all = multihost_utils.process_allgather(gradient(weights, x))
    weights, step = weights - 0.1 * of_all.reshape(nodes, 2).mean(axis=0), step + 1
    if rank == 0 and step % 10 == 0:
        with state.transaction() as transaction:  # all or nothing
            transaction["step"], transaction["weights"] = step, np.asarray(weights)
        job.progress(step)
    if step == given.fail_at and rank == nodes - 1 and not job.restarted:
        raise RuntimeError("INTERNAL: a device does not answer")
if rank == 0:
    print(f"done: {step} steps, {weights[0]:.2f} x + {weights[1]:.2f}", flush=True)
