"""``laggard status``, ``top`` and ``report`` as the user sees them: real commands, a terminal, a browser."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyte
import pytest

from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.command.cli import main
from laggard.resilience.command.report import make_report
from laggard.resilience.record.account import Account
from laggard.resilience.record.error_log import ErrorLog
from laggard.resilience.record.job_record import recorded
from laggard.resilience.record.journal import Journal
from laggard.resilience.record.own_metrics import OwnMetrics
from laggard.resilience.record.progress_log import ProgressLog
from laggard.resilience.record.recorder import Recorder
from laggard.resilience.report.frozen import frozen
from laggard.resilience.report.inputs import read_inputs
from laggard.telemetry.course import JobBegan
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAnswerer
from laggard.telemetry.nodes.mailbox import ASK
from laggard.telemetry.nodes.sources import pack_series
from tests.browser import browser, find_browser
from tests.integration.jobs import RunningJob
from tests.made_up_job import T0, running_job, series, write_record
from tests.waiting import wait_until

DEADLINE_S = 60.0
WIDTH, HEIGHT = 80, 24
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder in which running jobs are found."""
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as folder:
        monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", folder)
        yield Path(folder)


class Terminal:
    """A command on a terminal of 80 columns and 24 lines, if no others are given."""

    def __init__(self, *command: str, width: int = WIDTH, height: int = HEIGHT) -> None:
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._descriptor = ours
        self.settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"} | {"COLUMNS": "", "LINES": ""},
            start_new_session=True,
        )

    def shows(self, pattern: str) -> None:
        """Wait until the screen matches; until then it may be half drawn."""
        until_s = time.monotonic() + DEADLINE_S
        while not re.search(pattern, text := "\n".join(self._screen.display)):
            assert time.monotonic() < until_s, f"no {pattern!r} on the screen in time:\n{text}"
            if select.select([self._descriptor], [], [], 0.2)[0]:
                self._stream.feed(os.read(self._descriptor, 1 << 16))

    def colours(self) -> set[str]:
        """Return the colours of all letters and of what is behind them."""
        cells = [cell for line in self._screen.buffer.values() for cell in line.values()]
        return {colour for cell in cells for colour in (cell.fg, cell.bg)}

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._descriptor, keys.encode())

    def left(self) -> tuple[int, bool]:
        """Return the exit code, and whether the terminal's settings are restored."""
        return self.process.wait(DEADLINE_S), termios.tcgetattr(self._theirs) == self.settings

    def close(self) -> None:
        """End the command if it is still running."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._descriptor)
        os.close(self._theirs)


@contextmanager
def terminal(*arguments: str, width: int = WIDTH, height: int = HEIGHT) -> Iterator[Terminal]:
    command = (sys.executable, "-m", "laggard", "top", "--interval=0.5", *arguments)
    shown = Terminal(*command, width=width, height=height)
    try:
        yield shown
    finally:
        shown.close()


def test_top_shows_a_thousand_devices_on_eighty_columns_and_obeys_its_keys(root: Path) -> None:
    with running_job(root, 126, 8) as server, terminal() as shown:
        shown.shows(r"(?s)train-abc_1234.*1,008 devices, by worst.*q quit")
        shown.press("s")
        shown.shows(r"(?s)by name.*node1 gpu 0 .* 9\d ")
        shown.press("\x1b[B\x1b[B\r")
        shown.shows("(?s)node1 gpu 2 ─.*utilisation.* 9\\d %.*probe")
        shown.press("m")
        shown.shows("loss +1 +1.5")
        shown.press("h")
        shown.shows("35 % slower than its 3 peers")
        shown.press("n")
        shown.shows("node2 +excluded")
        server.stop()
        shown.shows("no answer from the job")
        shown.press("q")
        assert shown.left() == (0, True)


def test_the_map_of_top_has_the_pages_colours_and_none_where_none_are_wanted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_job(root, 4, 2), terminal(width=60, height=20) as shown:
        shown.shows("8 devices, by worst")
        shown.press("o")
        shown.shows(r"(?s)node4 +[-·+] [-·+].*x  found slow, not in use")
        assert "cdd4da" in shown.colours(), "the grey of a device that is as fast as its peers"
        shown.press("q")
        assert shown.left() == (0, True)
    monkeypatch.setenv("NO_COLOR", "1")
    with running_job(root, 4, 2), terminal(width=60, height=20) as shown:
        shown.shows("8 devices, by worst")
        shown.press("o")
        shown.shows(r"(?s)node4 +[-·+] [-·+].*x  found slow, not in use")
        assert shown.colours() == {"default"}
        shown.press("q")
        assert shown.left() == (0, True)


def test_top_asks_which_of_two_jobs_to_show(root: Path) -> None:
    with running_job(root), running_job(root, name="eval", job_id="b2"), terminal() as shown:
        shown.shows("(?s)2 jobs are running: which one.*eval-b2.*train-abc_1234")
        shown.press("\x1b[B\r")
        shown.shows("train-abc_1234 +\\d.*launch 1")
        shown.press("q")
        assert shown.left() == (0, True)


def test_top_ends_with_the_job_even_if_its_state_is_kept(root: Path) -> None:
    with running_job(root) as server, terminal() as shown:
        shown.shows("6 devices, by worst")
        shutil.rmtree(root / "laggard-abc_1234/node1")
        server.stop()
        shown.shows("the job has ended; 'laggard report train-abc_1234' shows what happened")
        assert shown.left() == (0, True)


@pytest.mark.parametrize("by_key", [True, False])
def test_ctrl_c_quits_top_and_restores_the_terminal(by_key: bool, root: Path) -> None:
    with running_job(root), terminal("train") as shown:
        shown.shows("6 devices, by worst")
        if by_key:
            shown.press("\x03")
        else:
            shown.process.send_signal(signal.SIGINT)
        assert shown.left() == (0, True)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line of the error that these arguments cause."""
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("laggard: ")


def test_status_takes_the_only_job_and_lists_several(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "no job of yours is running" in refused(capfd, "status")
    with ExitStack() as stack:
        stack.enter_context(running_job(root))
        assert main(["status"]) == 0
        text = capfd.readouterr().out
        for words in ("train-abc_1234", "node2 gpu 0", "excluded", "35 % slower", "gap before", "10.0 s", "loss"):
            assert words in text
        stack.enter_context(running_job(root, job_id="other_99"))
        assert refused(capfd, "status") == "2 jobs are running: name one of train-abc_1234, train-other_99"
        assert "no job 'eval' is running" in refused(capfd, "status", "eval")
        assert main(["status", "other_99", "--json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["job"] == "train-other_99"
        assert [node["role"] for node in found["nodes"]] == ["left out", "primary", "in use"]
        device = next(each for each in found["devices"] if (each["host"], each["gpu"]) == ("node3", "1"))
        assert device["readings"]["utilization_percent"] == pytest.approx(95, abs=5)
        assert device["against_peers"] == pytest.approx(1, abs=0.1)


def test_folders_open_to_others_and_killed_jobs_are_ignored(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running_job(root):
        (root / "laggard-abc_1234").chmod(0o777)
        assert "no job of yours is running" in refused(capfd, "status")
        (root / "laggard-abc_1234").chmod(0o700)
        (root / "laggard-link").symlink_to(root / "laggard-abc_1234")
        assert main(["status"]) == 0
        capfd.readouterr()
        endpoint = (root / "laggard-abc_1234/node1/endpoint.json").read_bytes()
    left = root / "laggard-killed99/node1"
    left.mkdir(parents=True)
    left.parent.chmod(0o700)
    (left / "endpoint.json").write_bytes(endpoint)
    (left / "endpoint.json").chmod(0o600)
    assert "no job of yours is running" in refused(capfd, "status")


def test_any_node_of_the_job_shows_the_whole_job(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_job(root):
        there = tmp_path / "laggard-abc_1234"
        shutil.copytree(root / there.name / "node1", there / "node3")  # as an agent does on another machine
        monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", str(tmp_path))
        assert main(["status"]) == 0
        assert "train-abc_1234" in capfd.readouterr().out


def test_top_without_a_terminal_suggests_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        refused(capfd, "top")
        == "top needs an interactive terminal that can move its cursor: use 'laggard status' instead"
    )


def test_bad_input_for_a_report_is_one_line_that_names_it(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "no job record in" in refused(capfd, "report")
    assert refused(capfd, "report", "train").startswith("'train' is not a running job, a job kept in ")
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused(capfd, "report", str(tmp_path / "empty"))
    damaged = write_record(tmp_path / "damaged", samples=False) / "damaged.csv.gz"
    damaged.write_bytes(b"no gzip")
    assert str(damaged) in refused(capfd, "report", str(damaged.parent))
    assert "has no job.jsonl" in refused(capfd, "report", str(damaged))
    cut = write_dump(str(write_record(tmp_path / "cut", samples=False)), "cut", T0, series())
    cut.write_bytes(cut.read_bytes()[:-100])
    assert str(cut) in refused(capfd, "report", str(cut.parent))
    newer = write_record(tmp_path / "newer", samples=False)
    journal = newer / "job.jsonl"
    journal.write_text(journal.read_text().replace('"format": 1', '"format": 9'))
    assert "use the version that wrote it" in refused(capfd, "report", str(newer))
    record = write_record(tmp_path / "record", samples=False)
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refused(capfd, "report", str(record), "-o", str(tmp_path / "file/below"))
    del root


def test_a_report_is_found_by_the_jobs_name_or_the_folder_around_it(
    tmp_path: Path, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = write_record(tmp_path / "home/laggard/train-abc_1234", samples=False)
    for wanted in ([], ["train"], ["abc_1234"]):
        assert main(["report", *wanted]) == 0
        assert capfd.readouterr().out == f"{record / 'report.html'}\n"
    write_record(tmp_path / "state/reports/train-2", samples=False)
    assert main(["report", str(tmp_path / "state"), "-o", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "report.html").exists()
    del root


def test_explain_tells_of_a_running_job_a_kept_one_and_names_what_it_does_not_know(
    tmp_path: Path, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "no job record in" in refused(capfd, "explain")
    assert refused(capfd, "explain", "train").startswith("'train' is not a running job, a job kept in ")
    assert "has no job.jsonl" in refused(capfd, "explain", str(tmp_path))
    write_record(tmp_path / "home/laggard/train-old_9")
    for wanted in ([], ["train"], [str(tmp_path / "home/laggard/train-old_9")]):
        assert main(["explain", *wanted]) == 0
        first, _, _, *rest = capfd.readouterr().out.splitlines()
        assert first == "train-abc_1234: exit code 0 after 10 min 0 s, 2 launches on node1, node2, node3"
        assert any("for a slow device: node2 gpu 0: 35 % slower than its 3 peers" in line for line in rest)
    with running_job(root):
        assert main(["explain"]) == 0
        assert "train-abc_1234: running for" in capfd.readouterr().out
        with running_job(root, job_id="other_99"):
            assert refused(capfd, "explain").startswith("2 jobs are running: name one of ")


def test_a_job_that_could_not_begin_a_launch_is_explained(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    card = JobBegan("train", "x1", ("train.py",), (), 0, 0)
    with (
        StateServer.start(root / "state", job="train") as server,
        pytest.raises(RuntimeError, match="no agent"),
        recorded(card, server.endpoint, Account(), tmp_path / "home/laggard", kept=True, make_report=make_report),
    ):
        raise RuntimeError("no agent on node1")
    capfd.readouterr()
    assert main(["explain", "x1"]) == 0
    assert "it ended before its first launch: no agent on node1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no figures"), "not made: ValueError: no figures"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), r"not made: \S+/train-x1: No space left on device"),
    ],
)
def test_an_error_in_the_report_is_told_and_changes_nothing_else(
    error: Exception, said: str, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Path) -> None:
        raise error

    card = JobBegan("train", "x1", ("train.py",), (), 0, 0)
    with (
        StateServer.start(root / "state", job="train") as server,
        recorded(card, server.endpoint, Account(), tmp_path / "home/laggard", kept=True, make_report=fail) as record,
    ):
        assert record is not None
    assert re.search(said, " ".join(capfd.readouterr().err.split()))


# Its steps are kept in State at every tenth; the first launch fails after step 15.
def test_a_record_keeps_what_the_program_sends(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_values = threading.Event()
    read = OwnMetrics.read

    def seen(own: OwnMetrics, now_us: int) -> None:
        read(own, now_us)
        if own._newest:
            has_values.set()

    monkeypatch.setattr(OwnMetrics, "read", seen)
    record = write_record(tmp_path / "record", samples=False)
    journal = Journal(None)
    with (
        running_job(root) as server,
        Recorder(server.endpoint, journal, ProgressLog(journal.write), ErrorLog(), record, 1),
    ):
        assert has_values.wait(DEADLINE_S), "a sample of the loss is due every three seconds"

    ((name, by),) = frozen(read_inputs(record), "")["curves"].items()
    assert (name, by["[]"]["n_series"], set(by["[]"]["middle"])) == ("loss", 1, {1.5})


def test_a_node_in_use_that_a_record_lacks_is_told_and_when_it_answers_again(root: Path, tmp_path: Path) -> None:
    told: list[str] = []
    record = write_record(tmp_path / "record", samples=False)
    journal = Journal(None)
    watched = journal, ProgressLog(journal.write), ErrorLog(), record, 1, told.append
    answer = {"n_series": {}, "ranges": {}, "lines": pack_series([], 0)}
    with ExitStack() as stack:
        server = stack.enter_context(running_job(root))
        client = stack.enter_context(server.endpoint.connect())
        nodes = tuple(NodeRecord(host, "127.0.0.1", ()) for host in ("node1", "node2"))
        Control(client, server.endpoint, 1).write_launch(LaunchRecord(1, nodes, ()))
        with client.pubsub() as silent:
            silent.subscribe(*(server.endpoint.key(ASK, host) for host in ("node2", "lost")))
            stack.enter_context(Recorder(server.endpoint, *watched, silent_after_s=4.0))
            wait_until(lambda: told)
        Control(client, server.endpoint, 1).write_launch(LaunchRecord(1, nodes[:1], ()))  # it is lost, and comes back
        stack.enter_context(NodeAnswerer(client, server.endpoint, "node2", lambda _: answer))
        wait_until(lambda: len(told) > 1)

    assert told == [
        "node2: its telemetry does not answer: the record lacks what it reads",
        "node2: its telemetry answers again",
    ]


@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
def test_a_browser_shows_the_page_at_two_sizes_without_overflow_errors_or_requests(tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    record = write_record(tmp_path / "record", samples=False)
    losses = np.linspace(2.5, 0.5, 200)
    times_us = round(T0 * 1e6) + np.arange(200, dtype=np.int64) * 3_000_000
    own = [
        TimeSeries("loss", {"of_series": name, "n_series": "8"}, times_us, losses + by)
        for name, by in (("lowest", -0.1), ("mean", 0.0), ("highest", 0.1))
    ]
    single = TimeSeries(SCRIPT, {"of_series": "mean", "n_series": "1"}, times_us, losses)
    nodes = [TimeSeries("cpu_percent", {"host": f"node{n}"}, times_us, np.full(200, 7.0 * n)) for n in (1, 2, 3)]
    write_dump(str(record), "samples", T0 + 600, [*series(), *own, single, *nodes])
    clock = iter([T0 + 50, T0 + 400]).__next__
    errors = ErrorLog(clock)
    errors.take("node1", 0, b"early\n")
    errors.take("node1", 3, f"late {SCRIPT}\n".encode())
    errors.save(record)
    assert main(["report", str(record)]) == 0
    with browser(program, tmp_path / "profile") as tab:
        for width in (1280, 400):
            tab.open(record / "report.html", width, 4000)
            tab.wait_for("document.documentElement.dataset.loaded !== undefined")
            assert tab.measure("document.documentElement.scrollWidth") <= width
            assert tab.measure("innerWidth") == width
            assert "6 devices" in tab.measure("document.querySelector('#map-legend').textContent")
            assert "node2 gpu 0" in tab.measure("document.querySelector('#peers .values').textContent")
            assert "without node2" in tab.measure("document.querySelector('#events').textContent")
            assert tab.measure("document.querySelectorAll('#lane canvas, #peers canvas, #curves canvas').length") == 4
            titles = "[...document.querySelectorAll('#curves .chart-title')].map((each) => each.firstChild.data)"
            assert tab.measure(titles) == ["loss", SCRIPT], "names are text"
            legends = "[...document.querySelectorAll('#curves .values')].map((each) => each.textContent)"
            of_many, of_one = tab.measure(legends)
            assert of_many == "newest mean of 8 0.5 lowest to highest 0.4 to 0.6 "
            assert of_one == "newest value 0.5 "
            notes = "[...document.querySelectorAll('#curves .note')].map((each) => each.textContent)"
            assert tab.measure(notes) == ["only the lowest, the mean and the highest of 8 lines were kept", ""]
            assert tab.measure("document.querySelector('#lines').innerText").endswith(f"node1 rank 3 late {SCRIPT}")
            tab.measure("document.querySelector('#curves .plot').focus()")
            for _ in range(3):
                tab.press("PageDown")
            assert tab.measure("document.querySelector('#lines .now').textContent").endswith("node1 rank 0 early")
        kind = "document.querySelector('#curve-kind')"
        tab.measure(f"{kind}.value = 'node'; {kind}.dispatchEvent(new Event('input'))")
        tab.wait_for(f"{legends}.join() === 'newest node1 7 % node2 14 % node3 21 % '")
        metric = "document.querySelector('#map-metric')"
        tab.measure(f"{metric}.value = 'cpu_percent'; {metric}.dispatchEvent(new Event('change'))")
        tab.wait_for("document.querySelector('#map-legend').textContent.includes('3 nodes')")
        tab.measure(f"{metric}.value = 'DeviceUtilization'; {metric}.dispatchEvent(new Event('change'))")
        tab.wait_for("document.querySelector('#peers-text').textContent.startsWith('DeviceUtilization')")
        assert tab.complaints == []
        assert [address for address in tab.fetched if not address.startswith(("file:", "data:"))] == []


# Requests a relaunch once, then ends.
def test_no_report_keeps_no_record(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--per-node", "--no-report", "--report-dir=reports", "true")
    assert job.finish() == 0
    assert "report" not in job.account
    assert not (job.directory / "reports").exists()


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("sta", {"status"}),
        ("--local", {"--local-nodes"}),
        ("--local-nodes=3 --resi", {"--resilient"}),
        ("status --", {"--json", "--all", "--help"}),
        ("top --i", {"--interval"}),
    ],
)
def test_the_shell_completes_commands_and_options(
    words: str, completions: set[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["laggard"])
    monkeypatch.setenv("_LAGGARD_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"laggard {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        main()
    found = {line.partition(",")[2] for line in capfd.readouterr().out.splitlines()}
    assert found == completions
