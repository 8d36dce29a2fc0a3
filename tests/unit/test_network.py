"""The addresses at which machines reach each other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from laggard.resilience.allocation.network import (
    address_of,
    common_addresses,
    is_this_machine,
    own_address,
    resolve_addresses,
)
from laggard.resilience.errors import NodeAddressError
from laggard.system.ports import host_and_port


def test_a_machine_calls_a_loopback_address_from_its_first_one() -> None:
    assert own_address("127.0.0.9") == "127.0.0.1"


def test_a_machine_knows_its_own_addresses_of_both_kinds() -> None:
    assert all(map(is_this_machine, ("127.0.0.9", "::1", "localhost")))
    assert not any(map(is_this_machine, ("192.0.2.1", "2001:db8::1")))


def test_loopback_is_no_address_of_another_machine() -> None:
    with pytest.raises(NodeAddressError, match=r"^b has the loopback address ::1: check its name in /etc/hosts"):
        resolve_addresses({"a": "a", "b": "::1"})


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"a": ["fd00::1", "10.0.0.1"], "b": ["10.0.0.2"]}, ["10.0.0.1", "10.0.0.2"]),
        ({"a": ["10.0.0.1", "fd00::1", "fd00::2"], "b": ["fd00::3"]}, ["fd00::1", "fd00::3"]),
        ({"a": ["10.0.0.1", "fd00::1"]}, ["10.0.0.1"]),
        ({}, []),
    ],
)
def test_all_nodes_have_addresses_of_one_kind(found: dict[str, Sequence[str]], chosen: list[str]) -> None:
    assert list(common_addresses(found).values()) == chosen


def test_an_address_is_its_own_and_a_name_has_the_one_of_ipv4_if_there_is_one() -> None:
    assert [address_of(each) for each in ("10.0.0.1", "fd00::1", "localhost")] == ["10.0.0.1", "fd00::1", "127.0.0.1"]


def test_nodes_without_addresses_of_one_kind_are_named() -> None:
    with pytest.raises(NodeAddressError, match=r"^a has no IPv6 address and b no IPv4 address: "):
        common_addresses({"a": ["10.0.0.1"], "b": ["fd00::2"]})


def test_an_ipv6_address_with_a_port_is_in_brackets() -> None:
    assert host_and_port("fd00::1", 6379) == "[fd00::1]:6379"
    assert host_and_port("10.0.0.1", 6379) == "10.0.0.1:6379"
