"""The benchmark of links on real wires: one line where it cannot run, and what its table counts."""

from __future__ import annotations

import pytest

from benchmarks import link_wires, links
from benchmarks.link_wires import FAULTS, HEAD, Outcome

RETRANSMITTED = "TCP had to send 12 segments of the probes again in 9 s"


def test_without_root_one_line_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert links.main(["--wires"]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "python -m benchmarks links --wires: needs root to make network namespaces\n"


def test_a_row_counts_the_node_and_the_side_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        Outcome(4, "node2 receives 31 % slower than its 3 peers", RETRANSMITTED, 0, 0),
        Outcome(9, "node2 sends and receives 11 % slower than its 3 peers", "unknown", 0, 1),
        Outcome(5, "node2 receives 29 % slower than its 3 peers", RETRANSMITTED.replace("12", "7"), 0, 0),
        Outcome(None, "", "", 2, 0),
    ]
    monkeypatch.setattr(link_wires, "play", lambda _: outcomes.pop())

    (row,) = link_wires.rows(4, "receives 30")

    assert dict(zip(HEAD, row, strict=True)) == {
        "fault": "receives 30 % slower",
        "runs": 4,
        "node named": 3,
        "with the side": 2,
        "rounds, median": "5",
        "most": 9,
        "wrong verdicts": 2,
        "wrong notices": 1,
        "likely cause": "TCP had to send N segments of the probes again in N s (2); unknown (1)",
    }


@pytest.mark.parametrize("name", ["other traffic fills its link", "nothing"])
def test_where_nobody_is_at_fault_nobody_can_be_named_rightly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_wires, "play", lambda _: Outcome(None, "", "", 1, 0))

    (row,) = link_wires.rows(1, name)

    assert FAULTS[name].right == ""
    assert dict(zip(HEAD, row, strict=True))["node named"] == "-"
    assert dict(zip(HEAD, row, strict=True))["wrong verdicts"] == 1
