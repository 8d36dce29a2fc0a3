"""The addresses at which machines reach each other."""

from __future__ import annotations

from laggard.resilience.allocation.network import own_address


def test_a_machine_calls_a_loopback_address_from_its_first_one() -> None:
    assert own_address("127.0.0.9") == "127.0.0.1"
