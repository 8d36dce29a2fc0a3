"""Encrypted connections to the state server, with a Redis that has TLS; the wheel's Valkey has none."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import redis

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import StateDirectoryError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.server.program import choose_program
from laggard.kvstore.state.mapping import State
from laggard.resilience.controller.state_server_supervisor import StateSupervisor
from laggard.system.certificates import Authority

DEADLINE_S = 60.0
HAS_TLS = choose_program(encrypt=True).tls
needs_tls = pytest.mark.skipif(not HAS_TLS, reason="needs a redis-server or valkey-server with TLS on PATH")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StateServer]:
    with StateServer.start(tmp_path / "state", job="a", encrypt=True) as server:
        yield server


def ping(endpoint: Endpoint) -> bool:
    with endpoint.connect(timeout_s=2) as client:
        return bool(client.ping())


@needs_tls
def test_small_and_large_values_travel_over_tls(server: StateServer) -> None:
    assert server.endpoint.encrypted
    with server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        state = State(client, server.endpoint, 0)
        state["small"] = 1
        state["large"] = np.arange(1_000_000)
        assert state["small"] == 1
        assert np.array_equal(state["large"], np.arange(1_000_000))


@needs_tls
def test_a_client_without_tls_gets_no_answer(server: StateServer) -> None:
    with pytest.raises(redis.ConnectionError):
        ping(dataclasses.replace(server.endpoint, authority=""))


@needs_tls
def test_a_server_of_another_authority_is_not_sent_the_password(server: StateServer) -> None:
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        ping(dataclasses.replace(server.endpoint, authority=Authority().certificate))


@needs_tls
def test_the_password_is_asked_for_within_tls(server: StateServer) -> None:
    with pytest.raises(redis.AuthenticationError):
        ping(dataclasses.replace(server.endpoint, password="wrong"))


@needs_tls
def test_a_server_that_was_killed_comes_back_with_the_same_key(server: StateServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait_exit(DEADLINE_S)
    with server.start_again(DEADLINE_S) as again:
        assert again.endpoint == server.endpoint
        assert ping(server.endpoint)


@needs_tls
def test_a_kept_server_beyond_loopback_is_encrypted_and_comes_back_with_the_same_key(tmp_path: Path) -> None:
    addresses = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    outside = [address for address in addresses if not is_loopback(address)]
    if not outside:
        pytest.skip("needs an address beyond loopback")
    with StateSupervisor(tmp_path / "state", job="a", host=outside[0], port=None) as keeper:
        assert keeper.endpoint.encrypted
        assert ping(keeper.endpoint)
        os.kill(keeper.pid, signal.SIGKILL)
        with keeper.changed:
            assert keeper.changed.wait_for(lambda: bool(keeper.messages), DEADLINE_S)
        assert ping(keeper.endpoint)


@needs_tls
def test_the_endpoint_file_is_enough_to_connect(tmp_path: Path, server: StateServer) -> None:
    server.endpoint.save(tmp_path / "endpoint.json")
    assert ping(Endpoint.load(tmp_path / "endpoint.json"))


@needs_tls
def test_a_named_server_with_tls_encrypts_only_beyond_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = str(choose_program(encrypt=True).path)
    monkeypatch.setenv("LAGGARD_STATE_SERVER", named)
    with StateServer.start(tmp_path, job="a") as server:
        assert not server.endpoint.encrypted
        assert not server.endpoint.exposed
        assert ping(server.endpoint)
    assert choose_program(encrypt=True).tls


def test_without_a_server_that_supports_tls_the_connection_is_plain_and_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with StateServer.start(tmp_path, job="a", encrypt=True) as server:
        assert ping(server.endpoint)
        assert not server.endpoint.encrypted
        assert dataclasses.replace(server.endpoint, host="192.0.2.1").exposed


def test_only_the_owner_can_open_the_files_of_state(tmp_path: Path) -> None:
    """Also in a folder that others can look into."""
    tmp_path.chmod(0o755)
    with StateServer.start(tmp_path, job="a", encrypt=True) as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        open_to_others = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_a_copy_that_is_open_to_others_is_restricted(tmp_path: Path) -> None:
    StateServer.start(tmp_path, job="a").stop()
    (tmp_path / "state.json").chmod(0o644)
    (tmp_path / "appendonlydir").chmod(0o755)
    with StateServer.start(tmp_path, job="a"):
        assert (tmp_path / "state.json").stat().st_mode & 0o077 == 0
        assert (tmp_path / "appendonlydir").stat().st_mode & 0o077 == 0


def test_a_folder_that_every_user_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StateDirectoryError, match=r"every user can write to it \(mode 0777\)"):
        StateServer.start(tmp_path, job="a")


@pytest.mark.root("to give a file away")
def test_a_password_file_of_another_user_is_refused(tmp_path: Path) -> None:
    StateServer.start(tmp_path, job="a").stop()
    shutil.chown(tmp_path / "state.json", "nobody")
    with pytest.raises(StateDirectoryError, match=r"its state.json belongs to another user"):
        StateServer.start(tmp_path, job="a")
