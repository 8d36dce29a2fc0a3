"""Which network is probed."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.errors import NoInterfaceError
from laggard.collectors.links.interface_counters import address_on, chosen_interface
from laggard.resilience.command.options import JobOptions
from laggard.resilience.errors import UsageError

THERE = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1", "ib1": "10.1.1.1", "ib10": "10.1.2.1"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("ib", "ib0"),
        ("ib1", "ib1"),
        ("=ib10", "ib10"),
        ("ens,ib1,eth", "ib1"),
        ("eth,ib", "eth0"),
        ("^lo,eth", "ib0"),
        ("^=lo", "eth0"),
    ],
)
def test_the_first_interface_that_fits_is_probed(wanted: str, expected: str) -> None:
    assert chosen_interface(wanted, THERE) == expected


@pytest.mark.parametrize("wanted", ["hsn", "=ib", "^lo,eth,ib", "IB"])
def test_a_node_without_such_an_interface_says_what_it_has(wanted: str) -> None:
    with pytest.raises(NoInterfaceError) as raised:
        chosen_interface(wanted, THERE)
    assert str(pickle.loads(pickle.dumps(raised.value))).startswith(  # noqa: S301 - our own
        f"no network interface fits --link-interface={wanted}: there are lo (127.0.0.1), eth0 (10.0.0.1), "
    )


@given(st.lists(st.sampled_from(list(THERE)), min_size=1))
def test_what_is_excepted_is_never_probed(names: list[str]) -> None:
    left = [each for each in THERE if not each.startswith(tuple(names))]
    try:
        assert chosen_interface("^" + ",".join(names), THERE) == left[0]
    except NoInterfaceError:
        assert left == []


def test_the_address_is_that_of_this_machine() -> None:
    assert address_on("=lo") == "127.0.0.1"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (JobOptions(link_interface="^", detect=("slow-link",)), "--link-interface=^ names no interface"),
        (JobOptions(link_interface="", detect=("slow-link",)), "--link-interface= names no interface"),
    ],
)
def test_an_option_that_names_no_interface_is_refused(options: JobOptions, error: str) -> None:
    with pytest.raises(UsageError, match=re.escape(error)):
        options.probed_interface()


def test_without_a_wish_it_is_the_network_of_the_nodes_addresses() -> None:
    assert JobOptions(detect=("slow-link",)).probed_interface() == ""
    assert JobOptions(detect=("slow-link",), link_interface="ib").probed_interface() == "ib"
