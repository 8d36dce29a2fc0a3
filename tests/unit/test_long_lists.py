"""What a job of 126 nodes prints: lists of nodes folded, and no line above 120 columns."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Mapping

import pytest
from rich.console import Console

from laggard.collectors.causes import Cause
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck
from laggard.detectors.evidence import WrongResults
from laggard.detectors.judging.diagnosis import diagnose
from laggard.detectors.verdict import Evidence, Verdict
from laggard.resilience.command.doctor import as_text
from laggard.resilience.command.views import print_status
from laggard.resilience.decision import wording
from laggard.resilience.decision.reasons import Change, Stopped
from laggard.resilience.errors import LeftoversError, UnreachableNodesError
from laggard.resilience.record.account import Account
from laggard.resilience.record.running_jobs import RunningJob, choose
from laggard.resilience.text import abbreviated, wrapped
from laggard.telemetry.course import Gap
from tests.unit.test_views import snapshot_of

WIDTH = 120
NODES = [f"nid{number:05}" for number in range(126)]
EVIDENCE = "11.3 times as slow as its 1003 peers since 20:37:27, 4 rounds, e-value 2.8e4, false-alarm budget 1e-4"


def assert_fits(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []


def account_of(width: int = 80) -> tuple[Account, io.StringIO]:
    text = io.StringIO()
    return Account(Console(file=text, width=width, highlight=False, soft_wrap=True)), text


@pytest.mark.parametrize("gone", [NODES[7:8], NODES[1::2], NODES[1:100]], ids=["one", "every second", "a block"])
def test_the_account(gone: list[str]) -> None:
    account, text = account_of()
    account.launch_began(0, NODES[:-1], NODES[-1:], None, NODES[0])
    account.verdict(
        Verdict(
            "nid00007",
            "3",
            11.3,
            "very slow",
            Evidence("nid00007", "3", WrongResults(EVIDENCE)),
            Cause("cooling"),
            "restart",
        )
    )
    reason = (Change(without=tuple(gone), came=tuple(NODES[-1:])),)
    account.tell("relaunch", wording.reason(reason))
    account.tell("lost", f"{abbreviated(gone)} fell silent: no heartbeat for 3.5 s; the last line of its log: Killed")
    account.launch_ended(reason, "exclusion")
    account.launch_began(1, [node for node in NODES if node not in gone], [], Gap(1.44, 0.01, 0.9), NODES[0])
    account.launch_ended((Stopped(signal.SIGTERM, EVIDENCE),), "stop")
    account.close(gone, 0)
    assert_fits(text.getvalue())
    assert "0 on nid[00000-00124] (primary: nid00000); reserve: nid00125" in text.getvalue()
    assert f"{len(gone)} node{'s' * (len(gone) > 1)} excluded" in text.getvalue()
    assert EVIDENCE in re.sub(r"\n {18}(?=\S)", " ", text.getvalue()), "nothing is lost where a line goes on"


def test_a_word_of_a_program_neither_breaks_a_line_nor_steers_the_terminal() -> None:
    account, text = account_of()
    account.tell("failure", "rank 0:\x1b[2J\r\nTraceback \x9b31m" + "x" * 200)
    first, *rest = text.getvalue().splitlines()
    assert not set(text.getvalue()) & {"\x1b", "\r", "\x9b"}
    assert first.startswith("00:00.0 failure   rank 0: [2J  Traceback")
    assert rest == [" " * 18 + "31m" + "x" * 200], "a word is never cut, since it may be a path"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (NODES, "nid[00000-00125]"),
        (NODES[::2], "nid[00000,00002,00004,00006,00008,00010,00012,00014,00016,…] (63 in all)"),
        (["a" * 80], "a" * 80),
        ([], ""),
        ([f"{letter}1" for letter in "abcdefgh"], "a1, b1, c1, d1, … (8 in all)"),
        ([f"{letter * 30}-{n}" for letter in "ab" for n in (1, 2)], f"{'a' * 30}-[1-2], … (4 in all)"),
    ],
)
def test_a_list_is_folded_and_bounded(names: list[str], shown: str) -> None:
    assert abbreviated(names) == shown


def test_the_errors() -> None:
    refused = dict.fromkeys(NODES, "Connection refused")
    error = UnreachableNodesError("no answer by ssh", refused, ["ssh", "nid00000", "true"])
    assert str(error) == "no answer by ssh from nid[00000-00125] (Connection refused): try ssh nid00000 true"
    own = {node: f"connect to host {node} port 22: no route" for node in NODES}
    error = UnreachableNodesError("no answer by ssh", own, ["ssh", "nid00000", "true"])
    assert "from nid[00000-00125] (connect to host nid00000 port 22: no route): try" in str(error)
    different = {node: f"error {number}" for number, node in enumerate(NODES)}
    error = UnreachableNodesError("no answer by srun", different, ["srun", "-w", "nid00000", "true"])
    assert str(error).endswith("nid00000 (error 0), nid00001 (error 1), and 124 others: try srun -w nid00000 true")
    assert_fits(str(error))
    assert_fits(str(LeftoversError("processes of launch 3 could not be ended", NODES[::2])))
    jobs = [RunningJob("train", f"{number:08}", None, None) for number in range(126)]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="126 jobs are running") as several:
        choose(jobs, None)
    assert_fits(str(several.value))


def checks(slow: Mapping[str, float]) -> dict[tuple[str, str], DeviceCheck]:
    return {
        (node, str(gpu)): DeviceCheck(
            str(gpu), model="NVIDIA H100 80GB HBM3", figures={"gemm_fp64": (60.0 / slow.get(node, 1.0), "TFLOP/s")}
        )
        for node in NODES
        for gpu in range(8)
    }


def test_the_doctor() -> None:
    healthy = checks({})
    assert_fits(as_text(healthy, diagnose(healthy, {}), as_json=False))
    some = checks(dict.fromkeys(NODES[::3], 1.7))
    assert_fits(as_text(some, diagnose(some, {}), as_json=False))
    silent = {(node, ALL_DEVICES): DeviceCheck(ALL_DEVICES, trouble="no answer within 300 s") for node in NODES}
    text = as_text(silent, diagnose(silent, {}), as_json=False)
    assert_fits(text)
    assert "nid[00000-00125]: no answer within 300 s" in text
    assert len(text.splitlines()) < 10


def test_the_status() -> None:
    text = io.StringIO()
    print_status(snapshot_of(126, 8), Console(file=text, width=WIDTH, highlight=False), None)
    assert_fits(text.getvalue())
    assert "node[1-125]" in text.getvalue()
    assert text.getvalue().count(" gpu ") >= 126 * 8


def test_a_line_goes_on_in_the_column_of_its_text() -> None:
    assert wrapped("one two three four five six", 20, 4) == "one two three four\n    five six"
    assert wrapped("short", 20, 4) == "short"
    assert wrapped("", 20, 4) == ""
