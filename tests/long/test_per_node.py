"""More of what may happen to a copy on every node; the first of it is in tests/integration/test_per_node.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_per_node import PER_NODE, Start, assert_nothing_is_left, counting


def test_a_lost_agent_of_the_primary_is_replaced(start_job: Start) -> None:
    job = counting(start_job)
    agent = job.process_of("node1", "program.py").parent()
    assert agent is not None
    agent.kill()
    assert job.finish() == 0, job.everything()
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_a_copy_killed_by_a_signal_causes_a_relaunch_of_all_on_the_same_nodes(start_job: Start) -> None:
    job = counting(start_job, "--fixed-ranks")
    job.process_of("node2", "program.py").kill()
    assert job.finish() == 0, job.everything()
    assert re.search("the program on node2 was killed by SIGKILL after .*; on the same nodes", job.account)
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_the_first_failure_wins_and_the_others_get_their_grace(start_job: Start, tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from laggard.kvstore import State

        if os.environ["NODE_RANK"] == "1":
            open("ready").readline()
            sys.exit(7)

        def save(*_):
            State.current()["saved"] = True
            print("saved")
            sys.exit(5)

        signal.signal(signal.SIGTERM, save)
        open("ready", "w").close()
        signal.pause()
    """
    os.mkfifo(tmp_path / "ready")
    job = start_job(*PER_NODE, "--on-failure=end", program=program, directory=tmp_path)
    assert job.finish() == 7, job.everything()
    assert job.output == "[node1] saved\n"
    assert "the program on node2 exited with 7 after" in job.account
    assert_nothing_is_left(job)


@pytest.mark.parametrize(("signum", "grace_s"), [(signal.SIGUSR1, 30), (signal.SIGTERM, 5)])
def test_a_warning_gives_the_program_its_whole_grace_and_an_order_to_end_a_part(
    start_job: Start, signum: signal.Signals, grace_s: int
) -> None:
    job = counting(start_job, "--grace=30")
    job.process.send_signal(signum)
    assert job.finish() == 128 + signum, job.everything()
    assert f"stopped by {signum.name}: ending everything" in job.account
    assert f"s into its {grace_s} s grace period" in job.account
    assert_nothing_is_left(job)


def test_a_node_that_always_kills_its_copy_is_soon_not_in_use_and_nobody_else_is_blamed(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks fail within moments of each other, and the others say what they noticed."""
    program = """
        import os, signal, sys

        node, rank = os.environ["LAGGARD_NODE"], os.environ["NODE_RANK"]
        noticed = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.3]:43439"
        if node == "node2":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if os.environ["LAGGARD_LAUNCH"] in "01":
            sys.exit(noticed)
    """
    monkeypatch.setenv("LAGGARD_REPORT", "1")
    job = start_job(*PER_NODE, "--backoff=0.1", "--report-dir=reports", program=program, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    failure = (
        r"the program on node2 exited with 1 after [\d.]+ s: RuntimeError: CUDA error: uncorrectable ECC error "
        r"encountered \(hardware: uncorrectable memory error of a GPU\); also ended: node1 \(lost its peer\)"
    )
    assert re.search(f"{failure}; ", job.account), job.everything()
    assert "node2" not in re.findall(r"launch +\d+ on (.*?) \(", job.account)[-1]
    (record,) = (tmp_path / "reports").iterdir()
    assert re.search(failure, (record / "report.html").read_text())
    entries = [json.loads(line) for line in (record / "job.jsonl").read_text().splitlines()]
    failures = [entry["failure"] for entry in entries if entry["is"] == "FailureFound"]
    assert {each["host"] for each in failures if not each["lost_peer"]} == {"node2"}


@pytest.mark.root("to mount a small file system")
def test_a_node_that_is_found_bad_after_a_failure_is_left_out_at_once(start_job: Start, tmp_path: Path) -> None:
    program = """
        import os
        from pathlib import Path

        if os.environ["LAGGARD_LAUNCH"] == "0":
            print("folder", Path(os.environ["LAGGARD_ENDPOINT_FILE"]).parent, flush=True)
            open(os.environ["NODE_RANK"]).readline()
            raise KeyError("labels")
    """
    for rank in "01":
        os.mkfifo(tmp_path / rank)
    job = start_job(*PER_NODE, "--verbose", program=program, directory=tmp_path)
    folder = job.wait_for(r"\[node2\] folder (\S+)").group(1)
    job.wait_for(r"\[node1\] folder")
    job.wait_for("from node2: .*NodeChecked")  # with what it is compared later
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "laggard-test", folder], check=True)
    try:
        for rank in "01":
            (tmp_path / rank).write_text("go on\n")
        job.wait_for("without node2; node3 comes in from the reserve")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    assert job.finish() == 0, job.everything()
    assert re.search(rf"KeyError: 'labels'.*; node2: the disk of {folder} is full; without node2", job.account)
    assert "2 launches, 1 node excluded (node2)" in job.account
