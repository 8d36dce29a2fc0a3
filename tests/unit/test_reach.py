"""What is said of nodes that a firewall keeps from State."""

from __future__ import annotations

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.resilience.controller.wording import cut_off
from laggard.system.ports import VARIABLE

PRIMARY = NodeRecord("node1", "10.0.0.1", ())
OURS, SITES = Endpoint("10.0.0.1", 6390, "job", "secret"), Endpoint("10.0.0.9", 6379, "job", "secret")
ADVICE = " --port-range names the ports that it lets through"


@pytest.mark.parametrize(
    ("server", "ports", "says"),
    [
        (OURS, "", f"node1:6390, where State is: is there a firewall?{ADVICE}"),
        (OURS, "60900-60999", "node1:6390, where State is: is there a firewall?"),
        (SITES, "", "10.0.0.9:6379, where State is: is there a firewall?"),
    ],
    ids=["on the primary", "with a range", "the site's own server"],
)
def test_a_range_of_ports_is_advised_where_it_would_help(
    server: Endpoint, ports: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ports)
    assert cut_off(["node2"], server, PRIMARY) == f"node2 cannot reach {says}"
