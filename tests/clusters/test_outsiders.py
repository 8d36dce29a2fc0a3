"""Another user, on a node outside of the job, scans and holds every port of the job's nodes: it goes on."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

from tests.clusters import outsider
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import Machine
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(600)

FIRST, SECOND, THIRD, LAST = NODES
NOBODY = "65534"
# Of slurmctld and slurmd, which are the site's.
SITES_PORTS = {26817, 26818}
# Longer than `srun` waits for the rest of a message, and than an agent may be silent.
ATTACK_S = 14.0
PROGRAM = 'echo "rank $NODE_RANK in launch $LAGGARD_LAUNCH"; until test -e end; do sleep 0.2; done'
# A node's `srun` has one port for what its tasks write, and two for what Slurm says about them.
PORTS_OF_SRUN = 3


@contextlib.contextmanager
def attacked(site: Site, *machines: Machine) -> Iterator[Iterator[dict[str, Any]]]:
    """Attack some machines as another user from the last node; yield what is done there, as it is done."""
    script = shutil.copy(Path(outsider.__file__), site.folder / "outsider.py")
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-I", str(script)]
    spared = ",".join(map(str, SITES_PORTS))
    addresses = [machine.address for machine in machines]
    argv = site.network.nodes[LAST].command(*command, str(ATTACK_S), spared, *addresses)
    attacking = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    with attacking, cast("IO[str]", attacking.stdout) as said:
        yield map(json.loads, said)
        said.read()
    assert attacking.returncode == 0


def ports_of_srun(machine: Machine) -> set[int]:
    """Return the ports on which a machine's ``srun`` listens."""
    sruns = [process for process in machine.processes() if process.name() == "srun"]
    own = {str(link.readlink()) for each in sruns for link in Path(f"/proc/{each.pid}/fd").iterdir()}
    lines = [line.split() for line in machine.run("cat", "/proc/net/tcp").splitlines()[1:]]
    return {
        int(fields[1].rpartition(":")[2], 16)
        for fields in lines
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own
    }


def test_an_outsider_who_scans_and_holds_every_port_takes_no_node_from_a_job(
    slurm: SlurmCluster, site: Site, work: Path, watch: Watch, start: Start
) -> None:
    login, first, second = site.network.login, site.network.nodes[FIRST], site.network.nodes[SECOND]
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill", f"--nodelist={FIRST},{SECOND},{THIRD}")
    options = ("--nodes=2", "--idle=1", "--resilient", "--virtual-gpus=1", "--per-node")
    job = start(login, slurm.environment, *salloc, "laggard", *options, "sh", "-c", PROGRAM)
    job.wait_for("rank . in launch 0", times=2)
    of_srun = {(each.address, port) for each in (login, first) for port in ports_of_srun(each)}
    assert len(of_srun) >= PORTS_OF_SRUN
    with attacked(site, login, first, second) as attack:
        assert next(attack) == {"attack": "scan"}
        ports = next(attack)["ports"]
        assert of_srun <= {(address, port) for address, found in ports.items() for port in found}
        assert len(ports[first.address]) >= PORTS_OF_SRUN + 2, "those of the state server and for agents, too"
        begun = next(attack)["begun"]
    assert not re.search("relaunch|lost|excluded .*node", job.output), job.output
    assert sum(count >= outsider.HELD for _, _, count in begun) >= PORTS_OF_SRUN, begun
    # What srun says of its tasks still comes, and what the program writes.
    agent = second.process("laggard.resilience.agent.agent")
    agent.kill()
    job.wait_for("rank . in launch 1", times=2)
    (work / "end").touch()
    assert job.finish() == 0, job.output
    assert f"{SECOND} is lost (its agent has ended)" in job.output, job.output
    assert job.output.count("is lost") == job.output.count(f"{SECOND} is lost"), job.output
    assert "launch 2" not in job.output
    watch.expect_no_processes()
