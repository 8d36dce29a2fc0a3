"""A node whose network is cut is a lost node: its pipe stays open, and nothing comes through it."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.remote import RemoteAllocation
from laggard.resilience.decision.roster import Roster
from laggard.resilience.errors import UnreachableNodesError
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming
from tests.clusters.machines import Machine, Network, missing_for_machines, wait_for
from tests.processes import command_line

DEADLINE_S = 30.0
NOTICED_S = 5.0
SSHD = "/usr/sbin/sshd"


class SshFromLogin(Transport):
    """Ssh from the login machine to the others, with its own key."""

    name = "ssh"

    def __init__(self, login: Machine, key: Path) -> None:
        self._login = login
        self._key = key

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        settings = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "BatchMode": "yes",
            "ConnectTimeout": 1,
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        return self._login.command("ssh", "-F", "none", "-q", "-i", str(self._key), *options, host, shlex.join(argv))

    def environment(self) -> dict[str, str]:
        return {}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if missing := missing_for_machines("ssh", "ssh-keygen", SSHD):
        pytest.skip(missing)
    for key in ("id", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    network = Network(tmp_path, ["far"])
    settings = {"HostKey": tmp_path / "host", "AuthorizedKeysFile": tmp_path / "id.pub", "StrictModes": "no"}
    options = [f"-o{name}={value}" for name, value in settings.items()]
    network.nodes["far"].run("mkdir", "-p", "/run/sshd")
    network.nodes["far"].run(SSHD, "-f", "/dev/null", "-oPidFile=none", *options)
    yield network
    network.shut_down()


def agents_on(machine: Machine) -> set[int]:
    module = "laggard.resilience.agent.agent"
    return {process.pid for process in machine.processes() if module in command_line(process)}


@pytest.mark.root("to make network namespaces")
def test_a_node_whose_network_is_cut_is_lost_is_not_waited_for_and_comes_back(network: Network, tmp_path: Path) -> None:
    transport = SshFromLogin(network.login, tmp_path / "id")
    addresses = {"here": network.login.address, "far": network.nodes["far"].address}
    allocation = RemoteAllocation(addresses, transport, 1)
    with network.login.as_here():  # where it listens
        allocation.discover()
    changed = threading.Condition()
    cluster = Cluster(allocation, tmp_path / "nodes", NodeFiles({}, {}), changed)
    cluster.start(Roster(("here", "far")))
    wait_for(
        lambda: all(node.agent.has_started for node in cluster.nodes.values()),
        "the agents' first heartbeat",
        DEADLINE_S,
    )
    assert cluster.lost() == []
    network.cut("far")
    cut_s = time.monotonic()
    wait_for(lambda: cluster.lost() == ["far"], "the loss", DEADLINE_S)
    print(f"noticed after {time.monotonic() - cut_s:.1f} s")
    far = network.nodes["far"]
    (record,) = (node for node in allocation.nodes if node.hostname == "far")
    old = agents_on(far)
    cluster.remove("far")
    assert old == agents_on(far)  # nobody could tell it
    with pytest.raises(UnreachableNodesError, match="no answer by ssh from far"):
        allocation.start_agent_again(record)
    network.mend("far")
    cluster.take_back(cluster.connect(record, allocation.start_agent_again(record)))
    wait_for(lambda: cluster.nodes["far"].agent.has_started, "the new agent's first heartbeat", DEADLINE_S)
    assert len(agents_on(far)) == 1
    assert old.isdisjoint(agents_on(far))
    cluster.stop()
    allocation.close()


def test_the_heartbeat_timeout_is_short_enough() -> None:
    assert HeartbeatTiming().timeout_s + 2 * HeartbeatTiming().interval_s < NOTICED_S
