"""Jobs between machines whose firewalls let one range of ports through, by real ssh."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.programs import MEETING, ON_EACH_NODE
from tests.clusters.site import NODES, Site, on_site
from tests.printed import PORTS_JOB

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, _ = NODES
CLOSED = "--port-range=50000-50099"
HOSTS = f"--hostlist={FIRST},{SECOND},{THIRD}"
SHRINKS = ("--resilient", "--exhaust-resources", "--virtual-gpus=1")
# What a machine of a site with a firewall lets in.
RULES = """
flush ruleset
table inet filter {{
    chain input {{
        type filter hook input priority 0
        iif lo accept
        ct state established,related accept
        meta l4proto {{ icmp, ipv6-icmp }} accept
        tcp dport {{ 22, 2222, 60900-60999 }} accept
        {otherwise}
    }}
}}
"""
# What one machine does not let out.
NOT_OUT = "table inet filter {{ chain output {{ type filter hook output priority 0; tcp dport 50000-50099 drop; }}; }}"


@pytest.fixture
def walls(hosts: Site) -> Iterator[Callable[..., None]]:
    """Give machines these rules; in the end they have none."""
    require("nft")

    def raise_walls(rules: str, *names: str) -> None:
        path = hosts.folder / "rules"
        path.write_text(rules)
        for name in names or NODES:
            hosts.network.nodes[name].run("nft", "-f", str(path))

    yield raise_walls
    for machine in hosts.network.nodes.values():
        machine.run("nft", "flush", "ruleset")


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        (MEETING, ("--per-node", "--detect=slow-link", "--detect-interval=1"), "met at 10.78.0.1"),
        (ON_EACH_NODE, ("--virtual-gpus=1",), f"on {FIRST} {SECOND} {THIRD}"),
    ],
    ids=["per-node", "ray"],
)
def test_a_job_gets_through_a_firewall_by_its_range(
    hosts: Site,
    watch: Watch,
    start: Start,
    work: Path,
    walls: Callable[..., None],
    program: str,
    options: tuple[str, ...],
    says: str,
) -> None:
    walls(RULES.format(otherwise="drop"))
    (work / "train.py").write_text(textwrap.dedent(program))
    *command, train = on_site(PORTS_JOB).split()
    job = start(hosts.network.nodes[FIRST], {}, *command, *options, train)
    assert job.finish() == 0, job.output
    assert says in job.output
    watch.expect_nothing()


@pytest.mark.parametrize("otherwise", ["drop", "reject"])
def test_who_cannot_reach_the_primary_is_named_and_it_is_not_left_alone(
    hosts: Site, watch: Watch, start: Start, walls: Callable[..., None], otherwise: str
) -> None:
    walls(RULES.format(otherwise=otherwise))
    job = start(hosts.network.nodes[FIRST], {}, "laggard", HOSTS, CLOSED, *SHRINKS, "sleep", "1000")
    assert job.finish() == 1, job.output
    assert re.search(f"laggard: {SECOND}, {THIRD} cannot reach {FIRST}:500\\d\\d: is there a firewall\\?$", job.output)
    watch.expect_nothing()


def test_a_node_that_alone_cannot_reach_the_primary_is_named_and_the_job_begins_without_it(
    hosts: Site, watch: Watch, start: Start, walls: Callable[..., None]
) -> None:
    walls(NOT_OUT.format(), SECOND)
    command = ("--per-node", "sh", "-c", 'echo "rank $NODE_RANK of $NNODES"')
    job = start(hosts.network.nodes[FIRST], {}, "laggard", HOSTS, CLOSED, *SHRINKS, *command)
    assert job.finish() == 0, job.output
    job.wait_for(f"lost +{SECOND}: no connection \\({SECOND} cannot reach {FIRST}:500\\d\\d: is there a firewall\\?\\)")
    assert "rank 1 of 2" in job.output
    watch.expect_nothing()


# How soon they are named: tests/unit/test_reach.py.
STATE_SHUT = ("--port-range=60900-60999", "--state-port=50000")
NAMED = r"{word} +{who} cannot reach {first}:50000, where State is: is there a firewall\?"


@pytest.mark.parametrize("otherwise", ["drop", "reject"])
def test_where_agents_get_through_and_state_cannot_be_reached_that_is_said_at_the_start(
    hosts: Site, watch: Watch, start: Start, walls: Callable[..., None], otherwise: str
) -> None:
    walls(RULES.format(otherwise=otherwise))
    job = start(hosts.network.nodes[FIRST], {}, "laggard", HOSTS, *STATE_SHUT, *SHRINKS, "--per-node", "sleep", "1000")
    assert job.finish() == 1, job.output
    assert re.search(NAMED.format(word="end", who=f"{SECOND}, {THIRD}", first=FIRST), job.output), job.output
    watch.expect_nothing()


def test_a_node_that_alone_cannot_reach_state_is_named(
    hosts: Site, watch: Watch, start: Start, walls: Callable[..., None]
) -> None:
    walls(NOT_OUT.format(), SECOND)
    job = start(hosts.network.nodes[FIRST], {}, "laggard", HOSTS, *STATE_SHUT, *SHRINKS, "--per-node", "true")
    assert job.finish() == 0, job.output
    job.wait_for(NAMED.format(word="notice", who=SECOND, first=FIRST))
    watch.expect_nothing()
