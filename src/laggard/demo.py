"""The program of ``laggard demo``: a loop on each device, one of which something else begins to load."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from laggard.interrupts import ended_by_interrupts

with ended_by_interrupts():
    import numpy as np

    from laggard import FencedError, Job, State, Telemetry, Transaction, local_device

STEPS = 400
LOAD_AT = 80  # the step at which the load begins
PAUSE_S = 0.05  # of each step: what loading its data would take
TOLD_EVERY_S = 3.0
SIZE, SIZE_OF_LOAD = 400, 1500  # of matrices


def main() -> None:
    """Run one rank of one launch, from the step that State has."""
    job, state, device, telemetry = Job.current(), State.current(), local_device(), Telemetry()
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    matrix = np.ones((SIZE, SIZE), dtype="float32")
    loads = job.launch == 0 and local_rank == 0 and os.environ["NODE_RANK"] != "0"
    if job.restarted and rank == 0:
        print(f"launch {job.launch} goes on from step {state.get('step/0', 0)}: the steps before are in State")
    first = last = state.get(f"step/{rank}", 0)
    told_s = time.monotonic()
    for step in range(first, STEPS):
        if loads and step == LOAD_AT:
            print(f"now something else begins to load GPU {device.gpu} of this node")
            for _ in range(2):  # one product runs while the next one waits
                threading.Thread(target=_load, daemon=True).start()
        begun_s = time.monotonic()
        device.run(lambda: matrix @ matrix)
        telemetry.add_data("step-time", time.monotonic() - begun_s, tagk="rank", tagv=str(rank))
        time.sleep(PAUSE_S)
        with state.transaction() as transaction:  # all or nothing
            transaction[f"step/{rank}"] = step + 1
            transaction.increment("steps")
        job.progress(state["steps"])
        if local_rank == 0 and (now_s := time.monotonic()) - told_s >= TOLD_EVERY_S:
            print(f"step {step + 1} of {STEPS}: {(step + 1 - last) / (now_s - told_s):.0f} steps a second")
            told_s, last = now_s, step + 1
    if state.update_with(lambda transaction: _ended(transaction, job.launch)) == world_size:
        print(f"{state['steps']} steps in all, {world_size} x {STEPS}: none lost, none twice")


def _load() -> None:
    device, ones = local_device(), np.ones((SIZE_OF_LOAD, SIZE_OF_LOAD), dtype="float32")
    while True:
        device.run(lambda: ones @ ones)


def _ended(transaction: Transaction, launch: int) -> int:
    """Count the ranks that have done all their steps, so that the last one knows that it is."""
    key = f"ended/{launch}"
    ended: int = transaction.get(key, 0) + 1
    transaction[key] = ended
    return ended


if __name__ == "__main__":
    with contextlib.suppress(FencedError, KeyboardInterrupt):  # the next launch goes on from here; or the job ends
        main()
