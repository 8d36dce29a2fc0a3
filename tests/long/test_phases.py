"""Real jobs that work at full speed for longer than ``--hang-timeout auto`` allows between two reported steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.jobs import RunningJob

PROGRAM = """
    import multiprocessing, os, socket, time

    from laggard import Job

    rank, n_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    until_s = time.monotonic() + 72

    def meet():
        if rank == 0:
            server = socket.create_server(("127.0.0.1", 0))
            with open("port.new", "w") as file:
                file.write(str(server.getsockname()[1]))
            os.rename("port.new", "port")
            return [server.accept()[0] for _ in range(n_ranks - 1)]
        while not os.path.exists("port"):
            time.sleep(0.01)
        return [socket.create_connection(("127.0.0.1", int(open("port").read())))]

    def barrier():
        if rank == 0:
            for peer in peers:
                peer.recv(1)
        for peer in peers:
            peer.sendall(b"x")
        if rank > 0:
            peers[0].recv(1)

    def compute():
        while time.monotonic() < until_s:
            sum(range(10_000))

    def save():
        with open(f"checkpoint{rank}", "wb", 0) as file:
            while time.monotonic() < until_s:
                file.write(bytes(100_000))
                time.sleep(0.2)

    def load(results):
        while True:
            results.put(bytes(1_000_000))
            time.sleep(0.2)

    def load_in_worker():
        context = multiprocessing.get_context("fork")
        results = context.Queue(4)
        worker = context.Process(target=load, args=(results,), daemon=True)
        worker.start()
        while time.monotonic() < until_s:
            results.get()

    peers = meet()
    for step in range(20):
        barrier()
        Job.current().progress(step)
        time.sleep(0.05)
    PHASE
    barrier()
    print("all is well", flush=True)
"""


@pytest.mark.parametrize("phase", ["compute()", "load_in_worker()", "if rank == 0: save()"])
def test_a_job_that_works_between_two_steps_is_not_relaunched(start_job: Callable[..., RunningJob], phase: str) -> None:
    options = ("--local-nodes=2", "--virtual-gpus=2", "--per-device", "--resilient", "--hang-timeout=auto")
    job = start_job(*options, program=PROGRAM.replace("PHASE", phase))
    assert job.finish() == 0, job.everything()
    assert "hangs" not in job.account
    assert "relaunch" not in job.account
