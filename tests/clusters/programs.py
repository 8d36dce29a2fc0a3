"""Programs and batch scripts of a site's user."""

from __future__ import annotations

from pathlib import Path

from tests.clusters.site import Site

__all__ = ["COUNTING", "EXAMPLE", "PER_NODE", "RANKS", "script"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "slow_gpu.py"
PER_NODE = ("--virtual-gpus=1", "--per-node")

# Counts in workers on the last node; prints what the previous launch left in State, and what it saves on SIGTERM.
COUNTING = """
    import signal, sys
    import ray
    from laggard.collectors.ray_actors import node_strategy
    from laggard.kvstore import State
    from laggard.resilience import Job

    job, state = Job.current(), State.current()
    before = {key: state.get(key) for key in ("count", "saved")}
    print(f"launch {job.launch} on {' '.join(n.hostname for n in job.nodes)} after {before}", flush=True)
    ray.init(logging_level="ERROR", log_to_driver=False)

    def save(signum, frame):
        state["saved"] = job.launch
        print("saved in launch", job.launch, flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)

    @ray.remote(num_gpus=1)
    def count():
        state = State.current()
        while True:
            with state.transaction() as transaction:
                transaction["count"] = transaction.get("count", 0) + 1

    counting = [count.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote()]
    while state.get("count", 0) <= (before["count"] or 0):
        ray.wait(counting, timeout=0.1)
    print("counting", flush=True)
    ray.get(counting)
"""

# A program without Ray: each process prints its rank; those of the first launch wait to be ended.
TELL = 'echo "rank $NODE_RANK of $NNODES on $(hostname), primary $MASTER_ADDR"; test $LAGGARD_LAUNCH != 0 || sleep 600'
RANKS = ("--per-node", "sh", "-c", TELL)


def script(site: Site, *options: str) -> None:
    """Write the user's batch script."""
    command = f"exec laggard {' '.join(options)}"
    site.write("work/job.sh", f"#!/bin/bash\n#SBATCH --no-kill --requeue --open-mode=append\n{command}\n")
