"""The program runs for each device, with torchrun's variables; and host files for other launchers. No Ray."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.printed import HOST_FILE_JOB
from tests.processes import command_lines

Start = Callable[..., RunningJob]

PER_DEVICE = ("--local-nodes=2", "--virtual-gpus=2", "--resilient", "--per-device")

# Every rank counts in State; the second launch goes on with the counts of the first, and ends.
COUNT = """
    import os, signal, time
    from laggard import Job, State

    job, state = Job.current(), State.current()
    of = lambda *names: [int(os.environ[name]) for name in names]
    rank, local_rank, node, world, local_world = of(
        "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
    )
    assert (world, local_world, rank) == (4, 2, 2 * node + local_rank)
    assert os.environ["MASTER_ADDR"] == job.primary.address
    assert os.environ["LAGGARD_NODE"] == job.nodes[node].hostname
    print("launch", job.launch, "rank", rank, "pid", os.getpid(), "from", state.get(f"n{rank}", 0), flush=True)
    state.increment(f"n{rank}", 5)
    if job.restarted:
        raise SystemExit(0)
    if rank == 2 and HOW == "raises":
        while len(state) < 4:
            time.sleep(0.01)
        raise KeyError("labels")
    signal.pause()
"""


def test_a_rank_that_raises_is_named_and_all_ranks_are_relaunched_and_their_counts_go_on(start_job: Start) -> None:
    job = start_job(*PER_DEVICE, program=COUNT.replace("HOW", "'raises'"))
    assert job.finish() == 0, job.everything()
    assert re.search(r"rank 2 on node2 exited with 1 after .*KeyError: 'labels'", job.account), job.everything()
    for rank in range(4):
        node = 1 + rank // 2
        assert re.search(rf"\[node{node} rank {rank}\] launch 0 rank {rank} pid \d+ from 0\n", job.output)
        assert re.search(rf"\[node{node} rank {rank}\] launch 1 rank {rank} pid \d+ from 5\n", job.output)
    assert command_lines(job.processes()) == []


def test_a_module_of_a_package_is_run_on_every_device(start_job: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "train.py").write_text(
        "import os, sys\nprint(__package__, __name__, sys.argv[1:])\nsys.exit(os.environ['LAGGARD_LAUNCH'] == '0')\n"
    )
    job = start_job(*PER_DEVICE, "-m", "mine.train", "-m", "--steps=3", directory=tmp_path)
    assert job.finish() == 0, job.everything()
    assert job.output.count("mine __main__ ['-m', '--steps=3']\n") == 8, job.everything()


def test_a_rank_that_is_killed_costs_its_node_a_strike(start_job: Start) -> None:
    job = start_job(*PER_DEVICE, program=COUNT.replace("HOW", "'waits'"))
    for rank in range(4):
        found = job.wait_for(rf"launch 0 rank {rank} pid (\d+) from 0")
        if rank == 3:
            pid = int(found.group(1))
    next(process for process in job.processes() if process.pid == pid).kill()
    assert job.finish() == 0, job.everything()
    assert re.search("rank 3 on node2 was killed by SIGKILL after .*; strike 1 for node2", job.account)
    assert len(re.findall(r"launch 1 rank \d pid \d+ from", job.output)) == 4
    assert command_lines(job.processes()) == []


def test_without_devices_it_is_refused_with_the_way_out(start_job: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = start_job("--local-nodes=2", "--per-device", program="")
    assert job.finish() == 2, job.everything()
    assert "--per-device finds no devices on node1, node2: add --virtual-gpus=K, or use --per-node" in job.account


def test_every_copy_has_a_list_of_the_nodes_for_other_launchers(start_job: Start, tmp_path: Path) -> None:
    """The command of the guide, on two virtual nodes."""
    _, *arguments = shlex.split(HOST_FILE_JOB)
    job = start_job("--local-nodes=2", "--virtual-gpus=2", *arguments, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    lines = re.findall(r"^\[node1\] (127\.[\d.]+) slots=2$", job.output, re.MULTILINE)
    assert len(lines) == 2
    assert lines == re.findall(r"^\[node2\] (127\.[\d.]+) slots=2$", job.output, re.MULTILINE)
    assert f"[node1] {','.join(lines)}\n" in job.output


def test_the_host_file_is_private_and_that_of_its_launch(start_job: Start) -> None:
    program = """
        import os
        from pathlib import Path
        path = Path(os.environ["LAGGARD_HOSTFILE"])
        print(path.name, oct(path.stat().st_mode & 0o777), len(path.read_text().splitlines()))
    """
    job = start_job("--local-nodes=3", "--nodes=2", "--per-node", program=program)
    assert job.finish() == 0, job.everything()
    assert job.output.count(f"hosts-0 {oct(stat.S_IRUSR | stat.S_IWUSR)} 2\n") == 2
