"""Jobs over IPv6, alone and beside IPv4, with names and with addresses, by real ssh."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.programs import MEETING, ON_EACH_NODE
from tests.clusters.site import NODES, Site

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, _ = NODES
ADDRESSES = {name: f"fd78::{number}" for number, name in enumerate(NODES, 1)}


@pytest.fixture
def six(hosts: Site) -> Iterator[Callable[[], None]]:
    """Give all machines an IPv6 address too, which is in no list of hosts; called, take away those of IPv4."""
    known, listed = hosts.home / ".ssh" / "known_hosts", hosts.folder / "hosts"
    before = known.read_text(), listed.read_text()
    public = (hosts.folder / "sshd" / "host_key.pub").read_text()
    known.write_text(before[0] + "".join(f"{address} {public}" for address in ADDRESSES.values()))
    for name, machine in hosts.network.nodes.items():
        machine.ip("addr", "add", f"{ADDRESSES[name]}/64", "dev", "eth0", "nodad")

    def only() -> None:
        # In place, since the machines have mounted this file.
        listed.write_text("::1 localhost\n" + "".join(f"{at} {name}\n" for name, at in ADDRESSES.items()))
        for machine in hosts.network.nodes.values():
            machine.ip("addr", "del", f"{machine.address}/24", "dev", "eth0")

    yield only
    known.write_text(before[0])
    listed.write_text(before[1])
    for name, machine in hosts.network.nodes.items():
        machine.ip("addr", "replace", f"{machine.address}/24", "dev", "eth0")
        machine.ip("addr", "del", f"{ADDRESSES[name]}/64", "dev", "eth0")


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside-ipv4"])
@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        (MEETING, ("--per-node", "--detect=slow-link", "--detect-interval=1", "--telemetry-level=2"), "met at fd78::1"),
        (ON_EACH_NODE, (), f"on {FIRST} {SECOND} {THIRD}"),
    ],
    ids=["per-node", "ray"],
)
def test_a_job_runs_over_ipv6(
    hosts: Site,
    watch: Watch,
    start: Start,
    work: Path,
    six: Callable[[], None],
    program: str,
    options: tuple[str, ...],
    says: str,
    alone: bool,
) -> None:
    if alone:
        six()
    named = (FIRST, SECOND, THIRD) if alone else (ADDRESSES[FIRST], ADDRESSES[SECOND], f"[{ADDRESSES[THIRD]}]:22")
    (work / "program.py").write_text(textwrap.dedent(program))
    job = start(
        hosts.network.nodes[FIRST],
        {},
        *("laggard", f"--hostlist={','.join(named)}", "--virtual-gpus=1", "--port-range=60900-60999"),
        *(*options, "program.py"),
    )
    assert job.finish() == 0, job.output
    assert says in job.output
    assert "server at [fd78::1]:609" in job.output
    watch.expect_nothing()
