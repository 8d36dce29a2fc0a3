"""Real torchrun jobs whose program knows nothing of laggard hang in four ways: the right rank is named each time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

pytest.importorskip("torch", reason="needs the extra `torch`")

TRAINING = """
    import os, signal, sys

    import torch
    import torch.distributed as dist

    def load_batch(path):
        with open(path) as pipe:
            return pipe.read()

    def save(path):
        with open(path, "w") as file:
            file.write("x")

    def tokenize():
        while True:
            pass

    def train(kind, path):
        for step in range(10**9):
            if step == 200 and dist.get_rank() == 3:
                print("trouble begins", flush=True)
                match kind:
                    case "loop":
                        tokenize()
                    case "stopped":
                        os.kill(os.getpid(), signal.SIGSTOP)
                    case "read":
                        load_batch(path)
                    case "frozen":
                        save(path)
                    case "skipped":
                        dist.barrier()
            dist.all_reduce(torch.ones(1000))

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(*sys.argv[1:])
"""
Start = Callable[..., RunningJob]
Hang = Callable[[str, Path], RunningJob]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("loop", r"rank 3 on node2 is in tokenize \(program\.py:\d+\)"),
        ("stopped", r"rank 3 on node2 is in train \(program\.py:\d+\), stopped"),
        ("read", r"rank 3 on node2 is in load_batch \(program\.py:\d+\)"),
        ("skipped", r"rank 3 on node2 waits in barrier \(program\.py:\d+\)"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(hang: Hang, kind: str, where: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    job = hang(kind, tmp_path / "fifo")
    job.wait_for(rf"the program hangs: .*: 3 ranks wait in all_reduce \(program\.py:\d+\); {where}; ")
    job.process.send_signal(signal.SIGTERM)
    job.finish()
    (stacks,) = job.directory.glob("report/*/stacks-0.txt")
    assert "rank 3 on node2" in stacks.read_text()
    (page,) = job.directory.glob("report/*/report.html")
    assert "stacks of all ranks" in page.read_text()


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system on which every write waits in the kernel."""
    if shutil.which("mkfs.ext4", path="/usr/sbin:/sbin") is None:
        pytest.skip("needs mkfs.ext4")
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    image.write_bytes(bytes(32 << 20))
    subprocess.run(["/sbin/mkfs.ext4", "-q", str(image)], check=True)
    if (mounted := subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True)).returncode:
        pytest.skip(f"no loop devices here: {mounted.stderr.decode().strip()}")
    subprocess.run(["fsfreeze", "--freeze", str(mount)], check=True)
    yield mount
    subprocess.run(["fsfreeze", "--unfreeze", str(mount)], check=False)
    wait_until(lambda: subprocess.run(["umount", str(mount)], capture_output=True).returncode == 0)


@pytest.mark.root("to make a file system that can be frozen")
def test_a_rank_that_the_kernel_holds_costs_its_node_and_not_the_job(hang: Hang, frozen: Path) -> None:
    """No signal ends it before its file system goes on."""
    job = hang("frozen", frozen / "checkpoint")
    job.wait_for(r"rank 3 on node2 is in save \(program\.py:\d+\), disk sleep; ")
    job.wait_for(r"launch +1 on node[13], node[13] ")
    subprocess.run(["fsfreeze", "--unfreeze", str(frozen)], check=True)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 128 + signal.SIGTERM, job.everything()


@pytest.fixture
def hang(start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], RunningJob]:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("LAGGARD_REPORT", "1")
    (tmp_path / "program.py").write_text(textwrap.dedent(TRAINING))

    def start(kind: str, path: Path) -> RunningJob:
        options = ["--local-nodes=3", "--nodes=2", "--resilient", "--per-node", "--grace=1", "--report-dir=report"]
        torchrun = ["torchrun", "--nproc-per-node=2", "program.py", kind, str(path)]
        # Longer than a rank may wait for the others to start.
        job = start_job(*options, "--hang-timeout=20", *torchrun, directory=tmp_path)
        job.wait_for("trouble begins")
        return job

    return start
