"""Where a server of the site's is, and whether it can keep State."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import SiteServerError
from laggard.kvstore.server.site import endpoint_of, unfit

GOOD: Mapping[str, Any] = {
    "redis_version": "7.2.4",
    "role": "master",
    "cluster_enabled": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "connected_slaves": 1,
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://db", Endpoint("db", 6379, "j", "p")),
        ("redis://db:7000/3", Endpoint("db", 7000, "j", "p", database=3)),
        ("rediss://ann@db.site:7000/", Endpoint("db.site", 7000, "j", "p", trusted_here=True, user="ann")),
        ("rediss://a%40b@[fd00::1]:1", Endpoint("fd00::1", 1, "j", "p", trusted_here=True, user="a@b")),
    ],
)
def test_a_url_names_host_port_user_and_database(url: str, expected: Endpoint) -> None:
    assert endpoint_of(url, "j", "p") == expected


def test_a_certificate_authority_takes_the_place_of_those_that_nodes_trust() -> None:
    endpoint = endpoint_of("rediss://db", "j", "p", authority="PEM", replicas=2)
    assert endpoint == Endpoint("db", 6379, "j", "p", "PEM", replicas=2)
    assert endpoint.encrypted


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://db", "cannot use the server at http://db: that is no such URL; write it as rediss://HOST:PORT/0"),
        ("/usr/bin/redis-server", "no such URL"),
        ("redis://", "no such URL"),
        ("redis://db/first", "no such URL"),
        ("redis://db/0?timeout=3", "no such URL"),
        ("redis://db:70000", "Port out of range 0-65535; write it as"),
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(SiteServerError) as refused:
        endpoint_of(url, "j", "p")
    assert complaint in str(refused.value)


@pytest.mark.parametrize("url", ["redis://:sesame@db:1/0", "rediss://ann:sesame@db", "redis://ann:sesame@db:port"])
def test_a_url_with_a_password_is_refused_with_the_way_out_and_not_repeated(url: str) -> None:
    with pytest.raises(SiteServerError) as refused:
        endpoint_of(url, "j", "p")
    assert "sesame" not in str(refused.value)
    if "port" not in url:
        assert "--state-password-file, or set LAGGARD_STATE_PASSWORD" in str(refused.value)


def test_an_authority_for_a_connection_that_is_not_encrypted_is_refused() -> None:
    with pytest.raises(SiteServerError, match="write rediss:// for --state-ca"):
        endpoint_of("redis://db", "j", "p", authority="PEM")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, None),
        ({"redis_version": "6.2.0"}, None),
        ({"redis_version": "6.0.16"}, "its version is 6.0.16; it must be 6.2 or newer"),
        ({"redis_version": None}, "its version is None"),
        ({"role": "slave"}, "it is a replica"),
        ({"cluster_enabled": 1}, "it is part of a cluster"),
        ({"maxmemory_policy": "allkeys-lru"}, "(maxmemory-policy allkeys-lru); set that to noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, "(maxmemory-policy volatile-ttl)"),
        ({"maxmemory_policy": None}, "(maxmemory-policy None)"),
        ({"aof_enabled": 0}, "it keeps nothing on disk (appendonly no); set that to yes, or add --state-in-memory"),
        ({"connected_slaves": 0}, "it has 0 replicas, where --state-replicas asks for 1"),
    ],
)
def test_a_server_is_refused_that_evicts_keys_keeps_nothing_or_takes_no_writes(
    found: Mapping[str, Any], reason: str | None
) -> None:
    complaint = unfit({**GOOD, **found}, 1, in_memory=False)
    assert (complaint is None) if reason is None else (complaint is not None and reason in complaint)


def test_a_server_that_keeps_nothing_on_disk_is_accepted_where_that_is_wanted() -> None:
    assert unfit({**GOOD, "aof_enabled": 0}, 0, in_memory=True) is None
