"""Programs and batch scripts of a site's user."""

from __future__ import annotations

from pathlib import Path

from tests.clusters.site import Site

__all__ = ["COUNTING", "EXAMPLE", "MEETING", "ON_EACH_NODE", "PER_NODE", "RANKS", "script"]

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

# Each rank reaches State, and the one that waits at the address where all meet.
MEETING = """
    import os, socket

    from laggard.kvstore import State

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["NODE_RANK"] == "0":
        (family, *_), *_ = socket.getaddrinfo(*address)
        with socket.create_server(address, family=family) as rendezvous:
            for _ in range(2):
                rendezvous.accept()
    else:
        State.current()["meeting"] = address  # as soon as it is reached, somebody listens there
        while True:
            try:
                socket.create_connection(address, 5).close()
                break
            except ConnectionRefusedError:
                continue
    print("met at", address[0], flush=True)
"""

# Each of three workers says where it is.
ON_EACH_NODE = """
    import socket

    import ray

    ray.init()

    @ray.remote(num_gpus=1)
    class Here:
        def name(self):
            return socket.gethostname()

    print("on", *sorted(ray.get([each.name.remote() for each in [Here.remote() for _ in range(3)]])))
"""

# A program without Ray: each process prints its rank; those of the first launch wait to be ended.
TELL = 'echo "rank $NODE_RANK of $NNODES on $(hostname), primary $MASTER_ADDR"; test $LAGGARD_LAUNCH != 0 || sleep 600'
RANKS = ("--per-node", "sh", "-c", TELL)


def script(site: Site, *options: str) -> None:
    """Write the user's batch script."""
    command = f"exec laggard {' '.join(options)}"
    site.write("work/job.sh", f"#!/bin/bash\n#SBATCH --no-kill --requeue --open-mode=append\n{command}\n")
