"""The embedded server: its start, its end, its directory, and what is on disk after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import (
    DamagedLogError,
    PortTakenError,
    ServerStartError,
    StateDirectoryError,
    StateUnavailableError,
)
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State

# Bounds a hang only.
DEADLINE_S = 20.0


def test_neither_the_argument_list_nor_the_environment_nor_the_log_shows_the_password(tmp_path: Path) -> None:
    with StateServer.start(tmp_path, job="a") as server:
        process = psutil.Process(server.pid)
        shown = " ".join([*process.cmdline(), *process.environ().values(), (tmp_path / "server.log").read_text()])
    assert server.endpoint.password not in shown
    assert server.endpoint.password not in repr(server.endpoint)


def test_everything_in_the_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    with StateServer.start(tmp_path / "state", job="a"):
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "state" / "state.json").stat().st_mode) == 0o600


def test_a_client_without_the_password_is_refused(state_server: StateServer) -> None:
    endpoint = state_server.endpoint
    with socket.create_connection((endpoint.host, endpoint.port), timeout=DEADLINE_S) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100).startswith(b"-NOAUTH")


def test_it_listens_on_loopback_only(state_server: StateServer) -> None:
    listening = [c.laddr.ip for c in psutil.Process(state_server.pid).net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


def test_started_again_on_its_directory_it_has_the_same_password_and_state(tmp_path: Path) -> None:
    with StateServer.start(tmp_path, job="a") as first, first.endpoint.connect() as client:
        begin_launch(client, first.endpoint, 0)
        State(client, first.endpoint, 0)["answer"] = 42
    with StateServer.start(tmp_path, job="a") as second, second.endpoint.connect() as client:
        assert second.endpoint.password == first.endpoint.password
        assert State(client, second.endpoint, 0)["answer"] == 42


def test_every_acknowledged_commit_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    committed = 0
    for round_ in range(6):
        server = StateServer.start(tmp_path, job="a")
        with server.endpoint.connect() as client:
            begin_launch(client, server.endpoint, round_)
            state = State(client, server.endpoint, round_, retry_for_s=0)
            assert state.get("count", 0) == committed
            assert len(state.get("log", [])) == committed
            for _ in range(5):
                with state.transaction() as t:
                    t["count"] = t.get("count", 0) + 1
                    t.append("log", b"x" * 1000)
                committed += 1
            os.kill(server.pid, signal.SIGKILL)
            assert server.wait_exit(DEADLINE_S) == -signal.SIGKILL


def test_a_commit_interrupted_by_a_kill_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    for round_ in range(5):
        server = StateServer.start(tmp_path, job="a")
        with server.endpoint.connect() as client:
            begin_launch(client, server.endpoint, round_)
            state = State(client, server.endpoint, round_, retry_for_s=0)
            before = state.get("a", 0)
            assert (state.get("b", 0), len(state.get("log", []))) == (before, before)
            killer = threading.Timer(0.02 * (round_ + 1), os.kill, (server.pid, signal.SIGKILL))
            killer.start()
            acknowledged = commit_until_unavailable(state, before)
            killer.join()
            server.stop()
        with StateServer.start(tmp_path, job="a") as server, server.endpoint.connect() as client:
            assert State(client, server.endpoint, round_)["a"] in (acknowledged, acknowledged + 1)


def commit_until_unavailable(state: State, count: int) -> int:
    try:
        while True:
            with state.transaction() as t:
                t["a"] = count + 1
                t["b"] = count + 1
                t.append("log", b"x" * 100_000)
            count += 1
    except StateUnavailableError:
        return count


@pytest.mark.parametrize("kill_first", [True, False])
def test_a_commit_around_which_the_server_is_killed_is_stored_whole_or_not_at_all(
    tmp_path: Path, kill_first: bool
) -> None:
    before, after = {f"{n}": 1 for n in range(3000)}, {f"{n}": [n] for n in range(1, 2500)}
    server = StateServer.start(tmp_path, job="a")
    with server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        State(client, server.endpoint, 0).update(before)
        state = State(client, server.endpoint, 0, retry_for_s=0)
        layout: Any = state._layout
        script = layout._commit_script

        def killed_around(**arguments: object) -> object:
            reply = None if kill_first else script(**arguments)
            os.kill(server.pid, signal.SIGKILL)
            server.wait_exit(DEADLINE_S)
            return script(**arguments) if kill_first else reply

        layout._commit_script = killed_around
        with suppress(StateUnavailableError), state.transaction() as t:
            for key, value in after.items():
                t[key] = value
            t.increment("0")
    with StateServer.start(tmp_path, job="a") as server, server.endpoint.connect() as client:
        state = State(client, server.endpoint, 0)
        assert {key: state[key] for key in state} == (before if kill_first else {**before, **after, "0": 2})


def test_the_server_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys, pathlib; from laggard.kvstore.server.process import StateServer\n"
        "print(StateServer.start(pathlib.Path(sys.argv[1]), job='a').pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    # Its lock is free at once for the next controller, which waits for it.
    with StateServer.start(tmp_path, job="a", deadline_s=DEADLINE_S):
        assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[StateServer] = []
    thread = threading.Thread(target=lambda: started.append(StateServer.start(tmp_path, job="a")))
    thread.start()
    thread.join()
    assert started[0].wait_exit(0.2) is None
    started[0].stop()


def test_an_interrupt_from_the_terminal_does_not_reach_the_server(state_server: StateServer) -> None:
    assert os.getsid(state_server.pid) == state_server.pid


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is in use"):
            StateServer.start(tmp_path, job="a", port=port)


def test_a_port_in_use_by_another_state_server_is_named(tmp_path: Path, state_server: StateServer) -> None:
    with pytest.raises(PortTakenError):
        StateServer.start(tmp_path, job="a", port=state_server.endpoint.port)


def test_a_requested_port_is_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with StateServer.start(tmp_path, job="a", port=port) as server:
        assert server.endpoint.port == port


def test_a_directory_in_use_is_refused(state_server: StateServer) -> None:
    with pytest.raises(StateDirectoryError, match="another state server is using it"):
        StateServer.start(state_server.directory, job="test", deadline_s=0.05)


HOLDER = """
import sys
from pathlib import Path
from laggard.kvstore.server.process import StateServer

with StateServer.start(Path(sys.argv[1]), job="test"):
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_directory_of_a_job_that_runs_is_refused_at_once(tmp_path: Path) -> None:
    """Not after the time that the server of a killed job is given to end: no test may take that long."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        refused = f"a job of process {holder.pid} on this machine is using it; end that job or name another directory"
        with pytest.raises(StateDirectoryError, match=refused):
            StateServer.start(tmp_path, job="test", deadline_s=3600)
        holder.kill()
    StateServer.start(tmp_path, job="test", deadline_s=60).stop()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"machine": 1, "pid": "x", "created_s": 0}'])
def test_a_damaged_note_of_who_holds_a_directory_does_not_matter(tmp_path: Path, text: str) -> None:
    (tmp_path / "holder.json").write_text(text)
    with StateServer.start(tmp_path, job="test") as server:
        (tmp_path / "holder.json").write_text(text)
        with pytest.raises(StateDirectoryError, match="another state server is using it"):
            StateServer.start(server.directory, job="test", deadline_s=0.05)


def test_a_directory_of_another_job_is_refused(tmp_path: Path) -> None:
    StateServer.start(tmp_path, job="mine").stop()
    with pytest.raises(StateDirectoryError, match="it belongs to job 'mine', not 'yours'"):
        StateServer.start(tmp_path, job="yours")


def test_a_directory_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"format": 2, "job": "a", "password": "x"}))
    with pytest.raises(StateDirectoryError, match="its format is 2 and this version of laggard reads 1"):
        StateServer.start(tmp_path, job="a")


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StateDirectoryError, match=r"its state.json is damaged"):
        StateServer.start(tmp_path, job="a")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirectoryError, match="File exists"):
        StateServer.start(tmp_path / "file", job="a")


def test_a_path_that_cannot_be_created_is_refused() -> None:
    with pytest.raises(StateDirectoryError, match=r"cannot keep state in /proc/laggard: .*; name a writable directory"):
        StateServer.start(Path("/proc/laggard"), job="a")


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"cannot listen on 192\.0\.2\.1: .*; use an address of this machine"):
        StateServer.start(tmp_path, job="a", host="192.0.2.1")


def test_a_damaged_log_is_named_with_the_command_that_repairs_it(tmp_path: Path) -> None:
    with StateServer.start(tmp_path, job="a") as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        State(client, server.endpoint, 0)["a"] = b"x" * 1000
    (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"damaged!" + log.read_bytes()[8:])
    named = (
        rf"(?s)the log of State in {tmp_path} is damaged: repair it with `laggard repair-state {tmp_path}`.*Bad file"
    )
    with pytest.raises(DamagedLogError, match=named):
        StateServer.start(tmp_path, job="a")


def test_a_directory_with_odd_characters_works(tmp_path: Path) -> None:
    with StateServer.start(tmp_path / "a \"b\" 'c' \\n ü", job="a") as server:
        assert server.alive()


def test_the_error_shows_the_last_output_of_a_program_that_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho some last words\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv("LAGGARD_STATE_SERVER", str(program))
    with pytest.raises(ServerStartError, match=r"(?s)ended with code 3.*some last words"):
        StateServer.start(tmp_path / "state", job="a")


def test_a_program_that_stays_silent_is_stopped_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setenv("LAGGARD_STATE_SERVER", str(program))
    with pytest.raises(ServerStartError, match="was not ready in time"):
        StateServer.start(tmp_path / "state", job="a", deadline_s=0.3)
    assert not [p for p in psutil.Process().children() if p.name() == "sleep"]


def test_a_program_can_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_STATE_SERVER", "/nowhere/redis")
    with pytest.raises(ServerStartError, match="there is no program at /nowhere/redis"):
        StateServer.start(tmp_path, job="a")


@pytest.mark.root("to mount a small file system")
def test_a_full_disk_is_named_and_the_last_commit_is_kept(tmp_path: Path) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode()}")
    try:
        server = StateServer.start(tmp_path, job="a")
        with server.endpoint.connect() as client:
            begin_launch(client, server.endpoint, 0)
            state = State(client, server.endpoint, 0, retry_for_s=0)
            state["kept"] = b"x" * 1_000_000
            with pytest.raises(ConnectionError):
                state.update({f"more {n}": bytes(1_000_000) for n in range(10)})
            assert server.wait_exit(DEADLINE_S) is not None
            assert str(server.full()).startswith(f"no room left for State at {tmp_path}")
        subprocess.run(["mount", "-o", "remount,size=16m", str(tmp_path)], check=True)
        with StateServer.start(tmp_path, job="a") as server, server.endpoint.connect() as client:
            assert State(client, server.endpoint, 0)["kept"] == b"x" * 1_000_000
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
