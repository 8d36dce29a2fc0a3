"""The ranks of a launch, from outside: which processes they are, whether they do anything, and where they stand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from laggard.kvstore.client.connection import write_private
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control
from laggard.kvstore.server.process import StateServer
from laggard.resilience.agent import stack_dump
from laggard.resilience.agent.hook import hook_variables
from laggard.resilience.agent.processes import ask_to_end, behind_wrappers
from laggard.resilience.agent.ranks import Rank, RankFinder
from laggard.resilience.decision.stacks import RankStack, odd_ones
from laggard.resilience.wire import decode
from laggard.resilience.wire.checks import Stacks
from tests.waiting import DEADLINE_S, wait_until

TORCHRUN = """
    import os, signal, subprocess, sys

    for rank in (2, 3):
        subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": str(rank)})
    signal.pause()
"""
RANK = """
    import os, signal, subprocess, sys, time

    def load_batch():
        open("fifo").read()

    def spin():
        while True:
            pass

    worker = subprocess.Popen(["sleep", "600"])  # as a data loader has
    open(f"{os.environ['RANK']}.ready", "w").close()
    load_batch() if os.environ["RANK"] == "3" else spin()
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start the program of launch 7, with two ranks of which one spins and one reads."""
    monkeypatch.setenv(ENDPOINT_FILE, str(tmp_path / "endpoint.json"))
    for name, text in (("torchrun.py", TORCHRUN), ("rank.py", RANK)):
        (tmp_path / name).write_text("\n".join(line[4:] for line in text.splitlines()))
    os.mkfifo(tmp_path / "fifo")
    started = []

    def run(**variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, LAUNCH: "7", **variables}
        started.append(subprocess.Popen([sys.executable, "torchrun.py"], cwd=tmp_path, env=environment))
        wait_until(lambda: all((tmp_path / f"{rank}.ready").exists() for rank in (2, 3)))
        return started[-1]

    yield run
    for process in started:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
        process.wait()


def stacks_of(launch: int, capsys: pytest.CaptureFixture[str]) -> dict[int | None, RankStack]:
    stack_dump.main(launch)
    return {stack.rank: stack for stack in decode(capsys.readouterr().out.encode(), Stacks).found}


def test_ranks_are_found_among_all_processes_with_their_children(start: Start) -> None:
    start()
    finder = RankFinder(7, os.environ[ENDPOINT_FILE])
    ranks = finder.find()
    assert sorted((rank.rank, len(rank.descendants)) for rank in ranks) == [(2, 1), (3, 1)]
    assert sorted(finder.find(), key=str) == sorted(ranks, key=str)
    assert RankFinder(8, os.environ[ENDPOINT_FILE]).find() == []
    assert RankFinder(7, "/run/another-job/endpoint.json").find() == []


def test_a_program_without_ranks_is_the_process_that_the_launch_has_begun_with() -> None:
    program = subprocess.Popen(["sleep", "600"], env={**os.environ, LAUNCH: "6", ENDPOINT_FILE: "file"})
    try:
        wait_until(lambda: RankFinder(6, "file").find() == [Rank(None, program.pid)])
    finally:
        program.kill()
        program.wait()


def test_the_counters_of_a_rank_that_works_grow_and_those_of_one_that_waits_do_not(start: Start) -> None:
    start()
    spins, waits = sorted(RankFinder(7, os.environ[ENDPOINT_FILE]).find(), key=lambda rank: rank.rank or 0)
    before = spins.counters().cpu_s, waits.counters()
    wait_until(lambda: spins.counters().cpu_s > before[0] + 0.2)
    assert waits.counters() == before[1]
    os.kill(waits.pid, signal.SIGSTOP)
    wait_until(lambda: waits.state() == "T")


def test_stacks_are_read_from_outside_even_those_of_a_process_that_is_stopped(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start()
    stopped = next(rank for rank in RankFinder(7, os.environ[ENDPOINT_FILE]).find() if rank.rank == 3)
    os.kill(stopped.pid, signal.SIGSTOP)
    stacks = stacks_of(7, capsys)
    assert stacks[2].place.startswith("spin (rank.py:")
    assert stacks[2].doing == "works"
    assert stacks[3].place.startswith("load_batch (rank.py:")
    assert stacks[3].doing == "stopped"


def test_the_stacks_of_a_rank_that_waits_for_a_child_have_those_of_the_child(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worker = """
        import multiprocessing, os

        def load_batch():
            open(f"{os.environ['RANK']}.ready", "w").close()
            open("fifo").read()

        process = multiprocessing.get_context("fork").Process(target=load_batch)
        process.start()
        process.join()
    """
    (tmp_path / "rank.py").write_text("\n".join(line[8:] for line in worker.splitlines()))
    start()
    wait_until(lambda: stacks_of(7, capsys)[3].awaited_child)
    child = stacks_of(7, capsys)[3].awaited_child
    assert child is not None
    assert child.place.startswith("load_batch (rank.py:")


def test_where_nobody_may_look_from_outside_a_rank_writes_its_stacks_itself(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "usercustomized").mkdir()
    hidden = tmp_path / "usercustomized" / "sitecustomize.py"
    hidden.write_text("import os\nopen(f'{os.getpid()}.hidden', 'w').close()\n")
    start(**hook_variables({**os.environ, "PYTHONPATH": str(hidden.parent)}))
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    stacks = stacks_of(7, capsys)
    assert stacks[2].place.startswith("spin (rank.py:")
    assert stacks[3].place.startswith("load_batch (rank.py:")
    assert (tmp_path / f"{stacks[2].pid}.hidden").exists(), "the sitecustomize that ours hides has not run"


def test_a_program_with_a_handler_of_its_own_for_the_signal_is_not_asked(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(**hook_variables(os.environ))
    for file in tmp_path.glob("stacks-*.txt"):
        file.unlink()
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    assert stacks_of(7, capsys)[2].trouble == "py-spy is not installed"
    assert not list(tmp_path.glob("stacks-*.txt"))


def test_a_process_that_would_die_of_the_signal_is_not_asked(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    stacks = stacks_of(7, capsys)
    assert stacks[2].trouble == "py-spy is not installed"
    assert psutil.pid_exists(stacks[2].pid)
    assert stacks[2].state


def test_how_the_ranks_look_is_stored_until_a_later_launch_begins(start: Start, state_server: StateServer) -> None:
    start()
    endpoint = state_server.endpoint
    client = endpoint.connect()
    begin_launch(client, endpoint, 7)
    write_private(Path(os.environ[ENDPOINT_FILE]), endpoint.to_json())
    watch = subprocess.Popen(
        [sys.executable, "-P", "-m", "laggard.resilience.agent.rank_watch"],
        env={**os.environ, LAUNCH: "7", NODE: "node2"},
    )
    try:
        control = Control(client, endpoint, 7)

        def silent_s() -> dict[int, float]:
            return {each["rank"]: each["silent_s"] for each in control.read_ranks()["node2"]["ranks"]}

        wait_until(lambda: "node2" in control.read_ranks())
        wait_until(lambda: silent_s()[3] > 3 and silent_s()[2] == 0)
        writes = _writes(client)
        begin_launch(client, endpoint, 8)
        wait_until(lambda: _writes(client) > writes + 1)  # the first one is ours
        with pytest.raises(subprocess.TimeoutExpired):
            watch.wait(1)  # the agent would start it again
        watch.terminate()
        assert watch.wait(60) == 0
    finally:
        watch.kill()
        watch.wait()


def _writes(client: redis.Redis) -> int:
    return sum(each["calls"] for name, each in client.info("commandstats").items() if name.startswith("cmdstat_eval"))


def program(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank.py").write_text(textwrap.dedent(text))


def test_a_rank_that_waits_at_a_socket_waits_for_its_peer(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program(
        tmp_path,
        """
        import os, socket

        def receive(peer):
            peer.recv(1)

        def spin():
            while True:
                pass

        ours, theirs = socket.socketpair()
        open(f"{os.environ['RANK']}.ready", "w").close()
        receive(ours) if os.environ["RANK"] == "3" else spin()
        """,
    )
    start()
    wait_until(lambda: stacks_of(7, capsys)[3].doing == "waits at a socket")
    stacks = stacks_of(7, capsys)
    assert odd_ones(list(stacks.values())) == (stacks[2],)
    assert stacks[2].doing == "works"


def test_a_child_that_was_killed_and_is_still_waited_for_is_told(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program(
        tmp_path,
        """
        import multiprocessing, os, signal

        context = multiprocessing.get_context("fork")
        results = context.Queue()
        worker = context.Process(target=signal.pause)
        worker.start()
        os.kill(worker.pid, signal.SIGKILL)
        open(f"{os.environ['RANK']}.ready", "w").close()
        results.get()
        """,
    )
    start()

    def killed() -> bool:
        child = stacks_of(7, capsys)[3].awaited_child
        return child is not None and child.signum == signal.SIGKILL

    wait_until(killed)


def test_a_pool_whose_worker_was_killed_with_a_task_is_told(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program(
        tmp_path,
        """
        import multiprocessing, os, signal

        def tokenize():
            os.kill(os.getpid(), signal.SIGKILL)

        with multiprocessing.get_context("fork").Pool(2) as pool:
            task = pool.apply_async(tokenize)
            open(f"{os.environ['RANK']}.ready", "w").close()
            task.get()
        """,
    )
    start()
    wait_until(lambda: stacks_of(7, capsys)[3].waits_for_idle_pool)


@pytest.mark.parametrize(
    ("command", "is_found"),
    [
        ("{python} wait.py; exit 3", True),
        ("sh -c '{python} wait.py; exit 3'; exit 3", True),
        ("{python} wait.py & {python} wait.py; exit 3", False),
        ("sleep 600; exit 3", False),
    ],
    ids=["in a shell", "in two", "two of them", "none"],
)
def test_a_program_is_found_behind_what_only_waits_for_it(tmp_path: Path, command: str, is_found: bool) -> None:
    (tmp_path / "wait.py").write_text("import signal\nopen('ready', 'a').write('x')\nsignal.pause()\n")
    n_ready = command.count("wait.py")
    shell = subprocess.Popen(["sh", "-c", command.format(python=sys.executable)], cwd=tmp_path)
    ready = tmp_path / "ready"
    wait_until(lambda: n_ready == 0 or (ready.exists() and ready.read_text() == n_ready * "x"))
    try:
        found = psutil.Process(behind_wrappers(shell.pid))
        assert (found.pid != shell.pid) == is_found
        assert not is_found or found.cmdline()[1:] == ["wait.py"]
        if is_found:
            ask_to_end(shell, signal.SIGTERM)
            assert shell.wait(DEADLINE_S) == 3, "the shell goes on after the program"
    finally:
        for each in psutil.Process().children(recursive=True):
            each.kill()
        shell.wait()


def test_a_shell_with_a_trap_gets_the_signal_itself(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import signal\nopen('ready', 'w').write('x')\nsignal.pause()\n")
    script = f"trap 'kill $!; exit 3' TERM; {sys.executable} wait.py & wait"
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path) as shell:
        wait_until((tmp_path / "ready").exists)
        ask_to_end(shell, signal.SIGTERM)
        assert shell.wait(DEADLINE_S) == 3


@pytest.mark.parametrize("command", ["exec {wait}", "{wait}; exit 3"], ids=["alone", "in a shell"])
def test_a_program_that_is_stopped_cannot_save_and_is_killed(tmp_path: Path, command: str) -> None:
    saves = "signal.signal(signal.SIGTERM, lambda *_: open('saved', 'w'))"
    (tmp_path / "wait.py").write_text(f"import signal\n{saves}\nopen('ready', 'w')\nsignal.pause()\n")
    script = command.format(wait=f"{sys.executable} wait.py")
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path) as shell:
        wait_until((tmp_path / "ready").exists)
        inner = psutil.Process(behind_wrappers(shell.pid))
        inner.suspend()
        wait_until(lambda: inner.status() == psutil.STATUS_STOPPED)
        ask_to_end(shell, signal.SIGTERM)
        assert shell.wait(DEADLINE_S) == (3 if "exit" in command else -signal.SIGKILL)
    assert not (tmp_path / "saved").exists()
