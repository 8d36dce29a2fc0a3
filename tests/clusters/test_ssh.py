"""Jobs of an ordinary user over real ssh, as in the guide, with a configuration and host files as people have them.

Also inside PBS and LSF jobs, whose daemons cannot be had: their variables and files are as their manuals describe them,
and LSF's remote shell is a stand-in that takes the same arguments.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.programs import COUNTING, EXAMPLE, RANKS
from tests.clusters.site import NODES, Site, on_site
from tests.clusters.sshd import ALIAS, PORTS
from tests.printed import DOCTORS_ROUNDS, HOST_FILE, SSH_CHECK, SSH_JOB

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, LAST = NODES
RESILIENT = ("--nodes=2", "--resilient", "--exhaust-resources", "--state-dir=state", "counting.py")
TELL = ("--virtual-gpus=1", "--per-node", "sh", "-c", 'echo "rank $NODE_RANK of $NNODES on $(hostname)"')
# 300 lines and then one without an end; the variable at the end would come through if it were not noise.
NOISY = 'for line in $(seq 300); do echo "welcome $line {}"; done\nprintf \'the last one {"is": "Handshake", \'\n'
# A start-up file that waits for ever, on one node.
HANGING = f'test "$(hostname)" = {LAST} && sleep 600\n'
# Takes LSF's arguments, a host and a command, and runs it with none of the login's start-up files.
BLAUNCH = """\
#!/bin/sh
host=$1
shift
exec ssh "$host" "$(printf "'%s' " "$@")"
"""


@pytest.fixture(autouse=True)
def _clean(site: Site) -> Iterator[None]:
    yield
    site.write(".bashrc", "")


def ranks(job: ClusterJob) -> set[str]:
    return {line.partition("] ")[2] for line in job.output.splitlines() if "] rank " in line}


def everywhere(*hosts: str) -> set[str]:
    return {f"rank {rank} of {len(hosts)} on {host}" for rank, host in enumerate(hosts)}


def test_a_killed_ssh_costs_nothing_and_a_killed_agent_leaves_nothing_and_loses_nothing(
    hosts: Site, watch: Watch, start: Start, work: Path
) -> None:
    (work / "counting.py").write_text(textwrap.dedent(COUNTING))
    primary = hosts.network.nodes[FIRST]
    (work / "hosts").write_text(f"{FIRST}\n{SECOND} slots=2\n{ALIAS}\n")
    job = start(primary, {}, "laggard", "--hostfile=hosts", *RESILIENT)
    job.wait_for(f"launch 0 on {FIRST} {SECOND}")
    job.wait_for("counting")
    primary.process(f"ConnectTimeout=8 {ALIAS}").kill()  # its agent, in reserve, has dialled
    hosts.network.nodes[SECOND].process("laggard.resilience.agent.agent").kill()
    job.wait_for(f"launch 1 on {FIRST} {ALIAS} after .*'count': [1-9]")
    job.wait_for("counting", times=2)
    hosts.network.nodes[LAST].process("laggard.resilience.agent.agent").kill()
    job.wait_for(f"launch 2 on {FIRST}( {SECOND})? after .*'saved': 1")  # node2 may be back by then
    job.wait_for("counting", times=3)
    primary.process("bin/laggard").terminate()
    assert job.finish() == 143, job.output
    watch.expect_nothing()


def test_a_host_that_does_not_answer_is_named(hosts: Site, watch: Watch, start: Start) -> None:
    hosts.network.cut(LAST)
    job = start(hosts.network.nodes[FIRST], {}, "laggard", f"--hostlist={FIRST},{SECOND},{ALIAS}", "sleep", "1000")
    code = job.finish()
    hosts.network.mend(LAST)
    assert code == 1, job.output
    *before, last = job.output.splitlines()
    assert f"no answer by ssh from {ALIAS} (ssh: connect to host {LAST} port 22" in last
    assert not [line for line in before if "laggard: waiting for" not in line]  # on a busy machine
    advice = hosts.as_user("sh", "-c", last.partition(": try ")[2])
    assert hosts.network.nodes[FIRST].run(*advice, environment=hosts.environment({})) == "\n", "it answers now"
    watch.expect_nothing()


def test_the_doctor_compares_the_devices_of_all_hosts(hosts: Site, watch: Watch, start: Start) -> None:
    command = on_site(DOCTORS_ROUNDS["ssh"]).replace(THIRD, ALIAS).split()
    job = start(hosts.network.nodes[FIRST], {}, *command, "--json", "--virtual-gpus=1", "--past=past.json")
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    found = json.loads(job.output)["devices"]
    assert [(device["host"], device["uuid"]) for device in found] == [
        (host, f"virtual-{host}-0") for host in (FIRST, SECOND, ALIAS)
    ]
    assert len({frozenset(device["seconds"]) for device in found}) == 1
    watch.expect_nothing()


def test_ranks_of_a_program_continue_after_a_host_is_lost(hosts: Site, watch: Watch, start: Start) -> None:
    primary = hosts.network.nodes[FIRST]
    job = start(primary, {}, "laggard", f"--hostlist={FIRST},{SECOND},{ALIAS}", "--nodes=2", "--resilient", *RANKS)
    job.wait_for(f"rank 0 of 2 on {FIRST}, primary 10.78.0.1")
    job.wait_for(f"rank 1 of 2 on {SECOND}, primary 10.78.0.1")
    hosts.network.nodes[SECOND].process("laggard.resilience.agent.agent").kill()
    job.wait_for(f"rank 1 of 2 on {LAST}, primary 10.78.0.1")
    assert job.finish() == 0, job.output
    watch.expect_nothing()


def test_the_commands_of_the_guide_run_the_main_job(hosts: Site, watch: Watch, start: Start, work: Path) -> None:
    shutil.copy(EXAMPLE, work)
    primary = hosts.network.nodes[FIRST]
    primary.run(*hosts.as_user(*on_site(SSH_CHECK).split()), environment=hosts.environment({}))
    job = start(primary, {}, *on_site(SSH_JOB).split(), "--no-thrash", "--num_iters=200")
    assert job.finish() == 0, job.output
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in job.output
    assert "iterations per rank: [200, 200, 200, 200], expected 200 each" in job.output
    assert "all there, none twice" in job.output
    watch.expect_nothing()


def test_a_killed_laggard_leaves_nothing_on_any_host(hosts: Site, watch: Watch, start: Start, work: Path) -> None:
    (work / "counting.py").write_text(textwrap.dedent(COUNTING))
    primary = hosts.network.nodes[FIRST]
    job = start(primary, {}, "laggard", f"--hostlist={FIRST},{SECOND},{THIRD}", "--nodes=2", "counting.py")
    job.wait_for("counting")
    primary.process("bin/laggard").kill()
    job.finish()
    watch.expect_no_processes()  # the State of a killed job is kept


def test_laggard_starts_on_its_first_host_only(hosts: Site, start: Start) -> None:
    job = start(hosts.network.nodes[SECOND], {}, "laggard", f"--hostlist={FIRST},{SECOND}", "true")
    assert job.finish() == 1
    assert f"the first host, {FIRST}, is the primary, but this is another machine" in job.output


def test_the_host_file_of_the_guide_behind_a_noisy_shell(hosts: Site, watch: Watch, start: Start) -> None:
    hosts.write(".bashrc", NOISY)
    # The site has no hosts of the file's last line: there are others in the same form, for the second time.
    hosts.write("work/hosts", on_site(HOST_FILE).replace("node[05-08,12]-ib", "nid[001-002]-ib"))
    job = start(hosts.network.nodes[FIRST], {}, "laggard", "--hostfile=hosts", *TELL)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(*NODES), job.output
    watch.expect_no_processes()


def test_the_doctor_reads_the_same_host_file_behind_the_same_shell(hosts: Site, watch: Watch, start: Start) -> None:
    hosts.write(".bashrc", NOISY)
    hosts.write("work/hosts", f"{FIRST}\nada@{SECOND}:{PORTS[1]}\n")
    command = ("laggard", "doctor", "--hostfile=hosts", "--virtual-gpus=1", "--json", "--past=past.json")
    job = start(hosts.network.nodes[FIRST], {}, *command)
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    assert f'"virtual-{SECOND}-0"' in job.output
    watch.expect_no_processes()


def test_a_wrong_line_of_a_host_file_is_named(hosts: Site, start: Start) -> None:
    hosts.write("work/hosts", f"{FIRST}\n\n{SECOND} {THIRD}\n")
    job = start(hosts.network.nodes[FIRST], {}, "laggard", "--hostfile=hosts", "true")
    assert job.finish() == 2
    assert job.output == (
        f"laggard: --hostfile=hosts, line 3: '{THIRD}' follows a host: name one host, or hosts with commas, "
        "on each line\n"
    )


def test_a_host_that_hangs_is_named_and_a_reserve_covers_it(hosts: Site, watch: Watch, start: Start) -> None:
    hosts.write(".bashrc", HANGING)
    given = f"--hostlist={','.join(NODES)}"
    job = start(hosts.network.nodes[FIRST], {}, "laggard", given, "--nodes=3", "--resilient", *TELL)
    job.wait_for(f"laggard: waiting for {LAST} by ssh: nothing answers yet")
    assert job.finish() == 0, job.output
    assert f"{LAST}: no answer by ssh (nothing answers yet); the job begins without it" in job.output
    assert "is back" not in job.output, job.output  # the others have waited for a minute, longer than their lease
    assert ranks(job) == everywhere(FIRST, SECOND, THIRD), job.output
    for node in hosts.network.nodes.values():
        node.run("pkill", "sleep", check=False)  # of the shell that hangs, which ssh cannot end
    watch.expect_no_processes()


def test_inside_a_pbs_job_its_hosts_are_found_and_reached_by_ssh(hosts: Site, watch: Watch, start: Start) -> None:
    hosts.write("work/pbs", "".join(f"{host}\n{host}\n" for host in NODES[:3]))
    variables = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(hosts.home / "work" / "pbs")}
    job = start(hosts.network.nodes[FIRST], variables, "laggard", *TELL)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(FIRST, SECOND, THIRD), job.output
    watch.expect_no_processes()


def test_inside_an_lsf_job_its_hosts_are_found_and_reached_by_blaunch(hosts: Site, watch: Watch, start: Start) -> None:
    blaunch = hosts.write("work/bin/blaunch", textwrap.dedent(BLAUNCH))
    blaunch.chmod(0o755)
    variables = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{FIRST} 2 {SECOND} 2 "}
    command = ("sh", "-c", 'PATH=$PWD/bin:$PATH exec laggard "$@"', "sh", *TELL)
    job = start(hosts.network.nodes[FIRST], variables, *command)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(FIRST, SECOND), job.output
    watch.expect_no_processes()
