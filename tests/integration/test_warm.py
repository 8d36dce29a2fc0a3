"""Ranks that are forked from a node's warm process: they are as fresh ones are, or fresh ones are started instead."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from laggard.resilience.wire.node import SetUp
from laggard.resilience.wire.tasks import Output, SignalTask, StartTask, TaskEnded, TaskStarted
from laggard.resilience.wire.warm import ForkAhead, KeepWarm, LeftOut, WarmReady
from tests.integration.jobs import RunningJob
from tests.integration.test_agent import AgentAtWork
from tests.processes import command_line, is_alive
from tests.waiting import wait_until

COMMAND = (sys.executable, "program.py", "--epochs", "3")
# What a process can tell of itself; the same of a forked and of a fresh one.
SELF = """
    import sys
    at_start = [name for name in sys.modules if name == "__main__"]
    path, argv, orig_argv = list(sys.path), list(sys.argv), list(sys.orig_argv)
    main = {name: repr(value) for name, value in globals().items() if name.startswith("__")}

    import argparse, ctypes, json, locale, multiprocessing, os, resource, signal, threading

    def square(number):
        return number * number

    def death_signal():
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0)
        return found.value

    if __name__ == "__main__":
        shown = open("/proc/self/environ").read().rstrip("\\0").split("\\0")
        about = {
            "main": {name: value for name, value in main.items() if name != "__builtins__"},
            "path": path, "argv": argv, "orig_argv": orig_argv, "flags": repr(sys.flags), "at_start": at_start,
            "pid": os.getpid(),
            "executable": [sys.executable, sys.prefix], "warnings": sys.warnoptions, "finders": repr(sys.meta_path),
            "environment": dict(sorted(os.environ.items())), "shown": sorted(shown),
            "command": open("/proc/self/cmdline").read(), "name": open("/proc/self/comm").read(),
            "folder": os.getcwd(), "parent": os.getppid(), "group": os.getpgrp(), "session": os.getsid(0),
            "dies_with_parent": death_signal(), "nice": os.nice(0), "umask": oct(os.umask(0)),
            "limits": [resource.getrlimit(number) for number in range(16)],
            "signals": {n: repr(signal.getsignal(n)) for n in range(1, 32)},
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "threads": [thread.name for thread in threading.enumerate()], "n_tasks": len(os.listdir("/proc/self/task")),
            "open": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in (0, 1, 2)),
            "n_open": len(os.listdir("/proc/self/fd")),
            "oom": open("/proc/self/oom_score_adj").read(), "locale": locale.setlocale(locale.LC_ALL),
            "out": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
            "arguments": vars(argparse.ArgumentParser().parse_known_args()[0]),
        }
        for how in ("spawn", "fork"):
            with multiprocessing.get_context(how).Pool(1) as pool:
                about[how] = pool.map(square, [1, 2, 3])
        print(json.dumps(about))
"""
# Ways to end, and what is to be seen of them.
ENDS = """
    import atexit, os, signal, sys, threading, time
    from lib import called

    def inner():
        raise KeyError("labels")

    atexit.register(print, "at exit")
    print("not flushed", end="")
    case = os.environ["CASE"]
    if case == "returns":
        threading.Thread(target=lambda: (time.sleep(0.1), print("from a thread"))).start()
    elif case == "raises":
        called(inner)
    elif case == "exits":
        sys.exit(3)
    elif case == "says why":
        sys.exit("out of luck")
    elif case == "interrupted":
        raise KeyboardInterrupt
    elif case == "at once":
        os._exit(7)
    elif case == "aborts":
        os.abort()
    elif case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "handles":
        sys.excepthook = lambda *_: print("hooked")
        inner()
"""
CASES = ("returns", "raises", "exits", "says why", "interrupted", "at once", "aborts", "killed", "handles")
WHICH = """
    import sys
    libraries = {"fine", "threads", "opens", "piped", "reads", "foreign", "broken", "exits", "crashes"}
    loaded = sorted(libraries & {*sys.modules})
    import fine
    print(*loaded, "version", fine.VERSION)
"""


class Node:
    """An agent, asked to keep a warm process for one program; the folder with the libraries that it may load."""

    def __init__(self, agent: AgentAtWork, folder: Path) -> None:
        self.agent = agent
        self.folder = folder / "program"
        self.site = folder / "site-packages"
        self.program = self.folder / "program.py"
        for each in (self.folder, self.site):
            each.mkdir()
        self.left_out: dict[str, str] = {}
        self.writes_stacks = self.records_imports = False
        self._n_tasks = 0
        environment = {"PYTHONPATH": str(self.site), "LAGGARD_ENDPOINT_FILE": str(folder / "endpoint.json")}
        agent.send(SetUp(str(folder), environment=environment))

    def write(self, source: str, **libraries: str) -> None:
        self.program.write_text(textwrap.dedent(source))
        for name, text in libraries.items():
            (self.site / f"{name}.py").write_text(textwrap.dedent(text))

    def keep_warm(self, *modules: str, directory: Path | None = None) -> None:
        where = str(directory or self.folder)
        shared = {"OMP_NUM_THREADS": "1"}
        self.agent.send(KeepWarm(COMMAND, shared, ("CASE", "RANK"), where, modules, self.writes_stacks))

    def wait_until_ready(self) -> int:
        """Wait for the warm process; note what it has left out and why; return its process id."""
        while True:
            report = self.agent.receive_any()
            if isinstance(report, WarmReady):
                return report.pid
            if isinstance(report, LeftOut):
                self.left_out[report.name] = report.why

    def start(self, *, may_be_warm: bool = True, **environment: str) -> str:
        self._n_tasks += 1
        name = f"program-{self._n_tasks}"
        task = StartTask(
            name,
            COMMAND,
            {"OMP_NUM_THREADS": "1", **environment},
            str(self.folder),
            relayed=True,
            may_be_warm=may_be_warm,
            writes_stacks=self.writes_stacks,
            records_imports=self.records_imports,
        )
        self.agent.send(task)
        return name

    def result(self, name: str) -> tuple[str | None, int, str, str]:
        """Wait for a task's end; return why it was not warm (None: nothing said), its exit code and its output."""
        why_not, output = None, {"stdout": b"", "stderr": b""}
        while True:
            report = self.agent.receive_any()
            if getattr(report, "name", "") != name:
                continue
            if isinstance(report, TaskStarted):
                why_not = report.why_not
            elif isinstance(report, Output):
                output[report.stream] += report.data
            elif isinstance(report, TaskEnded):
                return why_not, report.exit_code, output["stdout"].decode(), output["stderr"].decode()

    def run(self, *, may_be_warm: bool = True, **environment: str) -> tuple[str | None, int, str, str]:
        return self.result(self.start(may_be_warm=may_be_warm, **environment))

    def waiting(self, ready: int) -> list[psutil.Process]:
        """Return the processes that were forked ahead."""
        children = psutil.Process(self.agent.process.pid).children()
        return [each for each in children if each.pid != ready and "program.py" in command_line(each)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    agent = AgentAtWork()
    yield Node(agent, tmp_path)
    agent.end()


@pytest.mark.parametrize("writes_stacks", [False, True])
def test_a_forked_process_is_in_all_respects_as_a_fresh_one(node: Node, tmp_path: Path, writes_stacks: bool) -> None:
    node.writes_stacks = writes_stacks
    node.write(SELF, lib="VERSION = 1")
    node.keep_warm("lib", "json", "multiprocessing.pool", "argparse")
    node.wait_until_ready()
    reports: list[dict[str, Any]] = []
    for may_be_warm in (True, False):
        why_not, exit_code, output, errors = node.run(may_be_warm=may_be_warm, CASE="case", RANK="5")
        assert (why_not, exit_code, errors) == ("" if may_be_warm else None, 0, "")
        reports.append(json.loads(re.sub(" at 0x[0-9a-f]+", "", output)))
    pids = [report.pop("pid") for report in reports]
    warm, fresh = reports
    assert warm["shown"] == fresh["shown"]
    assert "RANK=5" in warm["shown"]
    assert {name for name in warm if warm[name] != fresh[name]} == set()
    written = {path.name for path in tmp_path.glob("stacks-*.txt")}
    assert {f"stacks-{pid}.txt" in written for pid in pids} == {writes_stacks}


def test_every_way_to_end_is_reported_and_printed_as_of_a_fresh_process(node: Node) -> None:
    node.write(ENDS, lib="def called(function):\n    function()\n")
    node.keep_warm("lib")
    node.wait_until_ready()
    codes = {}
    for case in CASES:
        warm, fresh = node.run(CASE=case), node.run(may_be_warm=False, CASE=case)
        assert warm[0] == "", case
        assert warm[1:] == fresh[1:], case
        codes[case] = warm[1]
    signals = {"interrupted": -signal.SIGINT, "aborts": -signal.SIGABRT, "killed": -signal.SIGKILL}
    assert codes == {"returns": 0, "raises": 1, "exits": 3, "says why": 1, "at once": 7, "handles": 1, **signals}


def test_a_module_that_a_fork_must_not_have_is_left_out_with_the_reason(node: Node) -> None:
    (node.folder / "mine.py").write_text("")
    node.write(
        WHICH,
        fine="VERSION = 1",
        threads="import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        opens="import socket; one = socket.socket()",
        piped="import os; ends = os.pipe()",
        reads="import os; rank = os.environ.get('RANK', '0')",
        foreign="import mine",
        torch="class cuda:\n    is_initialized = lambda: True",
        broken="raise ValueError('no licence')",
        exits="raise SystemExit(0)",
        crashes="import os; os.abort()",
    )
    left_out = ("torch", "threads", "opens", "piped", "reads", "foreign", "crashes")
    node.keep_warm(*left_out, "broken", "exits", "mine", "nowhere", "fine")
    node.wait_until_ready()
    assert node.left_out == {
        "torch": "initializes CUDA",
        "threads": "runs 1 more thread",
        "opens": "opens a socket",
        "piped": "opens a pipe",
        "reads": "reads RANK",
        "foreign": f"loads {node.folder / 'mine.py'}, which is not a library's",
        "crashes": "ends Python with SIGABRT",
    }
    assert node.run()[:3] == ("", 0, "fine version 1\n")


def test_a_library_that_ends_its_threads_for_a_fork_may_stay(node: Node) -> None:
    pytest.importorskip("numpy")
    node.write(
        "import sys; loaded = 'numpy' in sys.modules; import numpy; print(loaded, numpy.ones((9, 9)).dot(2).sum())"
    )
    node.keep_warm("numpy")
    node.wait_until_ready()
    assert node.left_out == {}
    assert node.run()[:3] == ("", 0, "True 162.0\n")


def test_numpys_chance_numbers_are_not_those_of_another_rank(node: Node) -> None:
    pytest.importorskip("numpy")
    node.write("import numpy, random; print(numpy.random.random(), random.random())")
    node.keep_warm("numpy", "random")
    node.wait_until_ready()
    first, second = node.run(), node.run()
    assert (first[0], second[0]) == ("", "")
    assert not {*first[2].split()} & {*second[2].split()}


def test_an_edited_file_is_never_served_stale(node: Node) -> None:
    node.write(WHICH, fine="VERSION = 1")
    node.keep_warm("fine")
    node.wait_until_ready()
    assert node.run()[:3] == ("", 0, "fine version 1\n")
    (node.site / "fine.py").write_text("VERSION = 1 + 1")
    assert node.run()[:3] == (f"{node.site / 'fine.py'} has changed", 0, "version 2\n")


def test_a_file_of_the_program_that_now_hides_a_library_is_not_overlooked(node: Node) -> None:
    node.write(WHICH, fine="VERSION = 1")
    node.keep_warm("fine")
    node.wait_until_ready()
    (node.folder / "fine.py").write_text("VERSION = 'my own'")
    assert node.run()[:3] == (f"fine is also in {node.folder}", 0, "version my own\n")


def test_a_folder_that_is_no_package_hides_nothing(node: Node) -> None:
    node.write(WHICH, fine="VERSION = 1")
    (node.folder / "fine").mkdir()
    node.keep_warm("fine")
    node.wait_until_ready()
    assert node.run()[:3] == ("", 0, "fine version 1\n")


def test_ranks_that_are_forked_ahead_wait_and_end_if_they_are_killed_or_not_needed(node: Node) -> None:
    node.write(WHICH, fine="VERSION = 1")
    node.keep_warm("fine")
    ready = node.wait_until_ready()
    node.agent.send(ForkAhead(2))
    wait_until(lambda: len(node.waiting(ready)) == 2)
    first, second = node.waiting(ready)
    first.kill()
    wait_until(lambda: node.waiting(ready) == [second])
    node.agent.ping()  # it has seen that the first one has ended
    node.agent.send(ForkAhead(2))
    wait_until(lambda: len(node.waiting(ready)) == 2)
    assert node.run()[:3] == ("", 0, "fine version 1\n")
    assert node.agent.process.stdin is not None
    node.agent.process.stdin.close()
    assert node.agent.process.wait(60) == 0
    assert not is_alive(second)


@pytest.mark.parametrize("first_is_killed", [False, True])
def test_the_first_of_several_ranks_runs_before_the_others_or_never(node: Node, *, first_is_killed: bool) -> None:
    node.write(WHICH, fine="VERSION = 1")
    node.keep_warm("fine")
    ready = node.wait_until_ready()
    node.agent.send(ForkAhead(3))
    wait_until(lambda: len(node.waiting(ready)) == 3)
    first = min(node.waiting(ready), key=lambda process: process.pid)  # they were forked in this order
    first.suspend()
    names = [node.start() for _ in range(3)]
    node.agent.ping()  # the agent has read it all, and could have started the others
    first.kill() if first_is_killed else first.resume()
    started = [node.agent.receive(TaskStarted) for _ in names]
    assert (started[0].name, bool(started[0].why_not)) == (names[0], first_is_killed)
    assert not any(each.why_not for each in started[1:])


def test_without_its_warm_process_a_node_starts_fresh_ones_and_can_have_another(node: Node) -> None:
    node.write(WHICH, fine="VERSION = 1")
    assert node.run()[0] == "no warm process is kept"
    node.keep_warm("fine", directory=node.folder / "nowhere")
    assert str(node.run()[0]).startswith(f"no warm process can be started in {node.folder}/nowhere: ")
    node.keep_warm("fine")
    os.kill(node.wait_until_ready(), signal.SIGKILL)
    wait_until(lambda: str(node.run()[0]).startswith("the warm process has ended: "))
    node.keep_warm("fine")
    node.wait_until_ready()
    assert node.run()[:3] == ("", 0, "fine version 1\n")


def test_while_a_process_loads_more_modules_ranks_are_forked_from_the_one_before(node: Node) -> None:
    waits = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)"
    node.write("import fine, sys; print('waits' in sys.modules)", fine="", waits=waits)
    node.keep_warm("fine")
    node.wait_until_ready()
    node.keep_warm("fine", "waits")
    assert node.run()[:3] == ("", 0, "False\n")
    (node.folder / "go").touch()
    node.wait_until_ready()
    assert node.run()[:3] == ("", 0, "True\n")


def test_a_task_that_is_asked_to_stop_while_it_is_forked_gets_the_signal(node: Node) -> None:
    node.write("import signal; signal.pause()")
    node.keep_warm()
    node.wait_until_ready()
    name = node.start()
    node.agent.send(SignalTask(name, signal.SIGTERM))
    assert node.result(name)[:2] == ("", -signal.SIGTERM)


def test_a_rank_that_cannot_record_what_it_imports_runs_in_any_case(node: Node, tmp_path: Path) -> None:
    node.write(WHICH, fine="VERSION = 1")
    node.records_imports = True
    (tmp_path / "imports-program-1.txt").mkdir()
    assert node.run()[1:3] == (0, "version 1\n")
    assert node.run()[1:3] == (0, "version 1\n")
    assert "fine" in (tmp_path / "imports-program-2.txt").read_text().split()
    node.keep_warm("fine")
    node.wait_until_ready()
    (tmp_path / "imports-program-3.txt").mkdir()
    assert node.run()[:3] == ("", 0, "fine version 1\n")


# ---------------------------------------------------------------------------------------------------------------------
# A whole job

RELAUNCHED = """
    import sys
    loaded = "numpy" in sys.modules
    import os, signal, time
    import numpy
    import psutil
    from laggard import Job, State

    job, state, rank = Job.current(), State.current(), os.environ["RANK"]

    def waiting():
        return [each for each in psutil.Process(os.getppid()).children() if is_waiting(each)]

    def is_waiting(process):
        try:
            same = process.cmdline() == psutil.Process().cmdline()
            return same and "LAGGARD_WARM" in process.environ()
        except psutil.Error:  # it has ended
            return False

    def save(*_):
        until_s = time.monotonic() + 50
        while len(waiting()) < 3 and time.monotonic() < until_s:  # the warm process, and two that it has forked
            time.sleep(0.01)
        state[f"seen{rank}"] = len(waiting())
        os._exit(0)

    print("launch", job.launch, "rank", rank, "loaded", loaded, "seen", state.get("seen0"), flush=True)
    if job.restarted:
        raise SystemExit(0)
    if rank == "0":
        signal.signal(signal.SIGTERM, save)
        signal.pause()
    while not os.path.exists("fail"):
        time.sleep(0.05)
    raise KeyError("labels")
"""


def test_a_relaunch_is_forked_from_what_the_last_launch_had_loaded_while_that_still_saves(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    pytest.importorskip("numpy")
    job = start_job(
        *("--local-nodes=1", "--virtual-gpus=2", "--resilient", "--per-device", "--grace=60"), program=RELAUNCHED
    )
    job.wait_for("warm +node1 keeps a process ready that has loaded")
    (tmp_path / "job0" / "fail").touch()
    assert job.finish() == 0, job.everything()
    for rank in (0, 1):
        assert f"[node1 rank {rank}] launch 0 rank {rank} loaded False seen None\n" in job.output
        assert re.search(rf"\[node1 rank {rank}\] launch 1 rank {rank} loaded True seen [3-9]\n", job.output)
    assert "2 of 2 ranks were forked from a warm process" in job.account
    assert job.processes() == []


def test_with_preload_none_nothing_is_kept(start_job: Callable[..., RunningJob]) -> None:
    program = """
        import os
        print(os.environ.get("PYTHONPATH"), [name for name in os.environ if name.startswith("LAGGARD_IMPORTS")])
        raise SystemExit(0 if os.environ["LAGGARD_LAUNCH"] == "1" else 1)
    """
    job = start_job("--local-nodes=1", "--resilient", "--per-node", "--preload=none", program=program)
    assert job.finish() == 0, job.everything()
    assert "warm" not in job.account
    assert job.output == f"[node1] {os.environ.get('PYTHONPATH')} []\n" * 2
