"""What the three programs beside this file do to themselves, once in a job, to a node that is not the primary."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import ray

from laggard import Job, State, Transaction, local_device

LONGEST_WAIT_S = 600.0
# `ray`, which need not be on the path
RAY_COMMAND = "from importlib.metadata import entry_points as e; e(group='console_scripts', name='ray')['ray'].load()()"


def chosen() -> str | None:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="A program of Ray's libraries that survives its nodes.")
    troubles = ("lost-node", "slow-device", "preemption")
    parser.add_argument("--trouble", choices=troubles, help="what becomes of a node in use")
    trouble: str | None = parser.parse_args().trouble
    return trouble


def strike(trouble: str | None) -> None:
    """Lose this worker's node, load its device or have Ray drain it, and then wait for the end; the first worker only.

    On the primary, wait until it has happened to another.
    """
    state = State.current()
    if trouble is None:
        return
    if os.environ["LAGGARD_NODE"] == Job.current().primary.hostname:
        until_s = time.monotonic() + LONGEST_WAIT_S
        while "struck" not in state:
            if time.monotonic() > until_s:
                raise TimeoutError("nothing has happened to another node")
            time.sleep(0.1)
        return
    if not state.update_with(_is_first):
        return
    if trouble == "slow-device":
        for _ in range(2):  # one product runs while the next one waits
            threading.Thread(target=_load, daemon=True).start()
    elif trouble == "preemption":
        context = ray.get_runtime_context()
        node = f"--address={context.gcs_address} --node-id={context.get_node_id()}".split()
        why = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=example", "--deadline-remaining-seconds=5"]
        subprocess.run([sys.executable, "-c", RAY_COMMAND, "drain-node", *node, *why], check=True)
    else:
        agent = next(each for each in psutil.Process().parents() if "laggard.resilience.agent.agent" in each.cmdline())
        agent.kill()
    threading.Event().wait()  # laggard or Ray ends this process


def _is_first(transaction: Transaction) -> bool:
    first = "struck" not in transaction
    transaction["struck"] = os.environ["LAGGARD_NODE"]
    return first


def _load() -> None:
    device, ones = local_device(), np.ones((1500, 1500), dtype="float32")
    while True:
        device.run(lambda: ones @ ones)
