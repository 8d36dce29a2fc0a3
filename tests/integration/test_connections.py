"""What running processes are connected to, read from /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.resilience.agent import connections
from laggard.resilience.agent.connections import descendants, used_by
from laggard.resilience.reading.targets import Target
from laggard.system.ports import port_for_later
from tests.waiting import wait_until

LOCAL = "127.0.0.1"
CONNECT_AND_SERVE = """
import socket, sys
outside = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as own:
    to_itself = socket.create_connection(own.getsockname())
    print("listens", flush=True)
    accepted = [own.accept(), own.accept()]
    if "closes" in sys.argv:
        own.close()
        to_itself.close()
    print("serves", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("listener", ["stays", "closes"])
def test_a_child_is_connected_to_what_it_has_called_and_not_to_what_it_serves_itself(listener: str) -> None:
    port, own_port = port_for_later(), port_for_later()
    with socket.create_server((LOCAL, port)):
        command = [sys.executable, "-c", CONNECT_AND_SERVE, str(port), str(own_port), listener]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.readline()
            with socket.create_connection((LOCAL, own_port)):  # somebody else is served
                child.stdout.readline()
                found = used_by(descendants(child.pid))
                assert child.pid in descendants(os.getpid())
                child.stdin.close()
            assert found == [Target("port", LOCAL, port)]
        wait_until(lambda: used_by([child.pid]) == [])
    assert descendants(child.pid) == []


def test_mounts_of_the_network_are_noted_where_a_process_works_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "network_mounts", lambda: [str(tmp_path)])
    with (tmp_path / "part-0").open("w"):
        assert Target("mount", of=str(tmp_path)) in used_by([os.getpid()])


def test_addresses_are_those_that_the_kernel_means() -> None:
    assert connections._address("0100007F:1F90") == ("127.0.0.1", 8080)
    assert connections._address("00000000000000000000000001000000:0050") == ("::1", 80)
    assert connections._address("0000000000000000FFFF00000100007F:0050") == ("127.0.0.1", 80)
