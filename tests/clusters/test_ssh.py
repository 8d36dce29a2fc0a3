"""Jobs on hosts with a real sshd, with a user's own ssh configuration."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import PRIVATE, Machine, Network
from tests.clusters.sshd import ALIAS
from tests.clusters.test_slurm import COUNTING, EXAMPLE, RANKS
from tests.printed import DOCTORS_ROUNDS, SSH_CHECK, SSH_JOB
from tests.processes import command_line

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

RESILIENT = ("--nodes=2", "--resilient", "--exhaust-resources", "--state-dir=state", "train.py")


def process_of(machine: Machine, words: str) -> psutil.Process:
    """Return the process of a machine that has these words in its command line."""
    for process in machine.processes():
        if words in command_line(process):
            return process
    raise AssertionError(f"no {words} on {machine.name}")


def test_a_killed_ssh_costs_nothing_and_a_killed_agent_leaves_nothing_and_loses_nothing(
    hosts: Network, watch: Watch, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(COUNTING))
    primary = hosts.nodes["node1"]
    (tmp_path / "hosts").write_text(f"node1\nnode2 slots=2\n{ALIAS}\n")
    job = start(primary, dict(os.environ), "laggard", "--hostfile=hosts", *RESILIENT)
    job.wait_for("launch 0 on node1 node2")
    job.wait_for("counting")
    process_of(primary, f"ConnectTimeout=8 {ALIAS}").kill()  # its agent, in reserve, has dialled
    process_of(hosts.nodes["node2"], "laggard.resilience.agent.agent").kill()
    job.wait_for(f"launch 1 on node1 {ALIAS} after .*'count': [1-9]")
    job.wait_for("counting", times=2)
    process_of(hosts.nodes["node3"], "laggard.resilience.agent.agent").kill()
    job.wait_for("launch 2 on node1( node2)? after .*'saved': 1")  # node2 may be back by then
    job.wait_for("counting", times=3)
    process_of(primary, "bin/laggard").terminate()
    assert job.finish() == 143, job.output
    watch.expect_nothing()


def test_a_host_that_does_not_answer_is_named(hosts: Network, watch: Watch, start: Start) -> None:
    hosts.cut("node3")
    job = start(hosts.nodes["node1"], dict(os.environ), "laggard", f"--hostlist=node1,node2,{ALIAS}", "sleep", "1000")
    code = job.finish()
    hosts.mend("node3")
    assert code == 1, job.output
    *before, last = job.output.splitlines()
    assert f"no answer by ssh from {ALIAS} (ssh: connect to host node3 port 22" in last
    assert not [line for line in before if "laggard: waiting for" not in line]  # on a busy machine
    watch.expect_nothing()


def test_the_doctor_compares_the_devices_of_all_hosts(hosts: Network, watch: Watch, start: Start) -> None:
    command = DOCTORS_ROUNDS["ssh"].replace("node3", ALIAS).split()
    job = start(hosts.nodes["node1"], dict(os.environ), *command, "--json", "--virtual-gpus=1", "--past=past.json")
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    found = json.loads(job.output)["devices"]
    assert [(device["host"], device["uuid"]) for device in found] == [
        (host, f"virtual-{host}-0") for host in ("node1", "node2", ALIAS)
    ]
    assert len({frozenset(device["seconds"]) for device in found}) == 1
    watch.expect_nothing()


def test_copies_of_a_program_continue_after_a_host_is_lost(hosts: Network, watch: Watch, start: Start) -> None:
    primary = hosts.nodes["node1"]
    job = start(
        primary, dict(os.environ), "laggard", f"--hostlist=node1,node2,{ALIAS}", "--nodes=2", "--resilient", *RANKS
    )
    job.wait_for("rank 0 of 2 on node1, primary 10.78.0.1")
    job.wait_for("rank 1 of 2 on node2, primary 10.78.0.1")
    process_of(hosts.nodes["node2"], "laggard.resilience.agent.agent").kill()
    job.wait_for("rank 1 of 2 on node3, primary 10.78.0.1")
    assert job.finish() == 0, job.output
    watch.expect_nothing()


def test_a_killed_laggard_leaves_nothing_on_any_host(
    hosts: Network, watch: Watch, start: Start, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    primary = hosts.nodes["node1"]
    primary.run(*SSH_CHECK.split())
    job = start(primary, dict(os.environ), *SSH_JOB.split())
    job.wait_for("launch 0: 4 ranks on 4 devices of 2 nodes")
    process_of(primary, "bin/laggard").kill()
    job.finish()
    watch.expect_no_processes()
    primary.run("sh", "-c", f"rm -r {PRIVATE}/*")  # the State of a killed job is kept


def test_laggard_starts_on_its_first_host_only(hosts: Network, start: Start) -> None:
    job = start(hosts.nodes["node2"], dict(os.environ), "laggard", "--hostlist=node1,node2", "true")
    assert job.finish() == 1
    assert "the first host, node1, is the primary, but this is another machine" in job.output
