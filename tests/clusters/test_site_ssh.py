"""Jobs of an ordinary user over real ssh, with host files as people have them, and inside PBS and LSF jobs.

The daemons of PBS and LSF cannot be had: their variables and files are as their manuals describe them, and LSF's remote
shell is a stand-in that takes the same arguments.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.clusters import sshd
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
from tests.clusters.sshd import SITE_PORTS

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, LAST = NODES
TELL = ("--virtual-gpus=1", "--per-node", "sh", "-c", 'echo "rank $NODE_RANK of $NNODES on $(hostname)"')
# 300 lines and then one without an end; the variable at the end would come through if it were not noise.
NOISY = 'for line in $(seq 300); do echo "welcome $line {}"; done\nprintf \'the last one {"event": \'\n'
# A start-up file that waits for ever, on one node.
HANGING = f'test "$(hostname)" = {LAST} && sleep 600\n'
# Takes LSF's arguments, a host and a command, and runs it with none of the login's start-up files.
BLAUNCH = """\
#!/bin/sh
host=$1
shift
exec ssh "$host" "$(printf "'%s' " "$@")"
"""


@pytest.fixture(scope="module")
def hosts(site: Site) -> Iterator[Site]:
    require(*sshd.PROGRAMS)
    with sshd.ssh_daemons_of(site):
        yield site


@pytest.fixture
def watch(site: Site) -> Watch:
    return Watch(site.network)


@pytest.fixture(autouse=True)
def _clean(site: Site) -> Iterator[None]:
    yield
    site.write(".bashrc", "")
    site.clean()


def ranks(job: ClusterJob) -> set[str]:
    return {line.partition("] ")[2] for line in job.output.splitlines() if "] rank " in line}


def everywhere(*hosts: str) -> set[str]:
    return {f"rank {rank} of {len(hosts)} on {host}" for rank, host in enumerate(hosts)}


def test_a_host_file_as_people_have_it_behind_a_noisy_shell(hosts: Site, watch: Watch, start_as_user: Start) -> None:
    hosts.write(".bashrc", NOISY)
    lines = f"{FIRST} slots=2\n{FIRST} slots=2\nada@{SECOND}:{SITE_PORTS[1]}\n{THIRD}:2  # new\nnid[007]-ib 2\n"
    hosts.write("work/hosts", lines)
    job = start_as_user(hosts.network.nodes[FIRST], {}, "laggard", "--hostfile=hosts", *TELL)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(*NODES), job.output
    watch.expect_no_processes()


def test_the_doctor_reads_the_same_host_file_behind_the_same_shell(
    hosts: Site, watch: Watch, start_as_user: Start
) -> None:
    hosts.write(".bashrc", NOISY)
    hosts.write("work/hosts", f"{FIRST}\nada@{SECOND}:{SITE_PORTS[1]}\n")
    command = ("laggard", "doctor", "--hostfile=hosts", "--virtual-gpus=1", "--json", "--past=past.json")
    job = start_as_user(hosts.network.nodes[FIRST], {}, *command)
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    assert f'"virtual-{SECOND}-0"' in job.output
    watch.expect_no_processes()


def test_a_wrong_line_of_a_host_file_is_named(hosts: Site, start_as_user: Start) -> None:
    hosts.write("work/hosts", f"{FIRST}\n\n{SECOND} {THIRD}\n")
    job = start_as_user(hosts.network.nodes[FIRST], {}, "laggard", "--hostfile=hosts", "true")
    assert job.finish() == 2
    assert job.output == (
        f"laggard: --hostfile=hosts, line 3: '{THIRD}' follows a host: name one host, or hosts with commas, "
        "on each line\n"
    )


def test_a_host_that_hangs_is_named_and_a_reserve_covers_it(hosts: Site, watch: Watch, start_as_user: Start) -> None:
    hosts.write(".bashrc", HANGING)
    given = f"--hostlist={','.join(NODES)}"
    job = start_as_user(hosts.network.nodes[FIRST], {}, "laggard", given, "--nodes=3", "--resilient", *TELL)
    job.wait_for(f"laggard: waiting for {LAST} by ssh: nothing answers yet")
    assert job.finish() == 0, job.output
    assert f"{LAST}: no answer by ssh (nothing answers yet); the job begins without it" in job.output
    assert "is back" not in job.output, job.output  # the others have waited for a minute, longer than their lease
    assert ranks(job) == everywhere(FIRST, SECOND, THIRD), job.output
    for node in hosts.network.nodes.values():
        node.run("pkill", "sleep", check=False)  # of the shell that hangs, which ssh cannot end
    watch.expect_no_processes()


def test_inside_a_pbs_job_its_hosts_are_found_and_reached_by_ssh(
    hosts: Site, watch: Watch, start_as_user: Start
) -> None:
    hosts.write("work/pbs", "".join(f"{host}\n{host}\n" for host in NODES[:3]))
    variables = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(hosts.home / "work" / "pbs")}
    job = start_as_user(hosts.network.nodes[FIRST], variables, "laggard", *TELL)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(FIRST, SECOND, THIRD), job.output
    watch.expect_no_processes()


def test_inside_an_lsf_job_its_hosts_are_found_and_reached_by_blaunch(
    hosts: Site, watch: Watch, start_as_user: Start
) -> None:
    blaunch = hosts.write("work/bin/blaunch", textwrap.dedent(BLAUNCH))
    blaunch.chmod(0o755)
    variables = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{FIRST} 2 {SECOND} 2 "}
    command = ("sh", "-c", 'PATH=$PWD/bin:$PATH exec laggard "$@"', "sh", *TELL)
    job = start_as_user(hosts.network.nodes[FIRST], variables, *command)
    assert job.finish() == 0, job.output
    assert ranks(job) == everywhere(FIRST, SECOND), job.output
    watch.expect_no_processes()
