"""Which ranks are slow in a section, and when a restart is asked for because of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from laggard.collectors.causes import Cause
from laggard.detectors import SlowGPUAnalysis, Verdict, wording
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.evidence import Slow
from laggard.detectors.judging.groups import Groups
from laggard.detectors.judging.history_store import HistoryStore, SectionKeeper
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.section_readings import Condition, Probes, SectionReadings, Worker, worker_of
from laggard.detectors.sections import SECTION_MIN_SLOWDOWN, budget_share
from laggard.detectors.verdict import Evidence
from laggard.kvstore.control import LaunchRecord, NodeRecord, PhaseRecord, Signs
from tests.kept import Kept

RANKS = 8
SLOW = 5  # on the second device of the third node


class Play:
    """Ranks with two devices a node, in rounds of readings of one section."""

    def __init__(
        self,
        *,
        groups: Groups | None = None,
        probes: Probes | None = None,
        kept: dict[str, Any] | None = None,
        cost_s: float = 0.0,
        section: str = "forward",
        tags: Callable[[int], Mapping[str, str]] = lambda _: {},
        devices: bool = True,
    ) -> None:
        keeper = HistoryStore(Kept.of(kept)) if kept is not None else HistoryStore(None)
        restarts = Restarts(RestartCost(cost_s))
        sections = SectionKeeper(keeper)
        sections.begin()
        self.analysis = SlowGPUAnalysis(min_slowdown=SECTION_MIN_SLOWDOWN)
        self.readings = SectionReadings(section, self.analysis, groups or {}, probes or Probes(), sections.asked)
        self.judge = Judge(self.readings, restarts, sections, section)
        self.phases: dict[str, PhaseRecord] = {}
        nodes = tuple(NodeRecord(f"node{number}", "", ("0", "1")) for number in range(1, 6))
        launch = LaunchRecord(0, nodes[:4], reserve=nodes[4:])
        self.judge.begin(launch, "run", lambda: Signs(0, phases=self.phases))
        self._number = 0
        self._workers = {}
        for rank in range(RANKS):
            gpu = {"gpu": str(rank % 2)} if devices else {}
            sample = {"host": f"node{rank // 2 + 1}", "rank": str(rank), **gpu, **tags(rank)}
            self._workers[rank] = worker_of(sample)
            self.judge.note_device(self._workers[rank], sample)

    def rounds(self, count: int, slowdown: Callable[[int], float] = lambda _: 1.0) -> list[Verdict]:
        found = []
        for _ in range(count):
            self._number += 1
            readings: Round = {
                worker: [0.02 * slowdown(rank) * (1 + 1e-3 * ((self._number + rank) % 3))]
                for rank, worker in self._workers.items()
            }
            found += self.judge.judge(readings, 3.0 * self._number)
        return found


def one_slow(rank: int) -> float:
    return 1.3 if rank == SLOW else 1.0


def restarts(verdicts: list[Verdict]) -> list[tuple[str, str | None]]:
    return [(verdict.host, verdict.gpu) for verdict in verdicts if verdict.action == "restart"]


def test_a_rank_that_becomes_slow_is_named_with_its_node_and_device() -> None:
    play = Play()
    assert play.rounds(12) == []
    verdicts = play.rounds(6, one_slow)
    assert restarts(verdicts) == [("node3", "1")]
    assert str(verdicts[-1].evidence).startswith(
        "rank 5 on node3 gpu 1: 30 % slower than its own past and than 7 peers, in the section forward, since"
    )
    assert str(verdicts[-1].evidence).endswith(" jobs")
    assert verdicts[-1].slowdown == pytest.approx(1.3, rel=0.01)


def test_a_rank_that_is_slower_by_less_than_matters_is_told_of_once_it_is_by_more() -> None:
    play = Play()
    play.rounds(12)
    assert play.rounds(30, lambda rank: 1.08 if rank == SLOW else 1.0) == []
    assert play.analysis.episode(("node3", f"rank {SLOW}")) is not None
    assert restarts(play.rounds(30, lambda rank: 1.2 if rank == SLOW else 1.0)) == [("node3", "1")]


def test_a_step_that_became_slower_on_all_ranks_is_a_notice() -> None:
    play = Play()
    play.rounds(12)
    assert play.rounds(60, lambda _: 1.3) == []
    [notice] = play.judge.take_notices()
    assert wording.notice(notice).startswith("all 8 ranks are 30 % slower than before since ")


def test_a_rank_without_a_known_device_is_named_with_its_node() -> None:
    play = Play(devices=False)
    play.rounds(12)
    verdicts = play.rounds(6, one_slow)
    assert restarts(verdicts) == [("node3", None)]
    assert str(verdicts[-1].evidence).startswith("rank 5 on node3: ")


def test_a_rank_that_was_slow_from_the_start_may_have_more_to_do() -> None:
    verdicts = Play().rounds(30, one_slow)
    assert [verdict.host for verdict in verdicts] == ["node3"] * len(verdicts)
    assert restarts(verdicts) == []
    assert "; no restart, since its share of the work may be larger" in str(verdicts[-1].evidence)


def test_a_rank_that_was_slow_from_the_start_among_ranks_with_equal_work_is_restarted() -> None:
    for play in (Play(groups=dict.fromkeys(range(RANKS), "all")), Play(tags=lambda _: {"group": "all"})):
        assert restarts(play.rounds(30, one_slow)) == [("node3", "1")]


def test_a_pipeline_stage_with_more_to_do_is_not_compared_with_the_others() -> None:
    stages = {rank: f"stage {rank // 2}" for rank in range(RANKS)}
    assert Play(groups=stages).rounds(30, lambda rank: 1 + 0.2 * (rank // 2)) == []


def test_devices_of_another_model_are_not_compared() -> None:
    models = Probes(model=lambda device: "old" if device[0] == "node1" else "new")
    for probes, hosts in ((models, set()), (Probes(model=lambda _: "new"), {"node1"})):
        found = Play(probes=probes).rounds(30, lambda rank: 1.2 if rank < 2 else 1.0)
        assert {verdict.host for verdict in found} == hosts


@pytest.mark.parametrize(("groups", "accused"), [({}, []), (dict.fromkeys(range(RANKS), "all"), ["node3", "node4"])])
def test_two_ranks_that_are_alike_may_be_another_stage_unless_the_program_says_otherwise(
    groups: Groups, accused: list[str]
) -> None:
    found = Play(groups=groups).rounds(30, lambda rank: 1.4 if rank in {5, 7} else 1.0)
    assert sorted(host for host, _ in restarts(found)) == accused
    assert {verdict.host for verdict in found} == {"node3", "node4"}


def test_what_a_rank_loses_goes_with_its_node() -> None:
    assert Play().readings.identities() == {
        (f"node{rank // 2 + 1}", f"rank {rank}"): f"node{rank // 2 + 1}" for rank in range(RANKS)
    }


@pytest.mark.parametrize(
    ("condition", "expected", "why_not"),
    [
        ("slow", [("node3", "1")], ""),
        ("well", [], "; no restart, since test kernels find its device well: its work or a link is the reason"),
        ("not known", [], "; no restart, since test kernels have not run on its device since then"),
        ("not probed", [("node3", "1")], ""),
    ],
)
def test_test_kernels_confirm_a_suspicion_or_refute_it(
    condition: Condition, expected: list[tuple[str, str | None]], why_not: str
) -> None:
    asked = []

    def answer(device: tuple[str, str], since_s: float) -> Condition:
        asked.append((device, since_s))
        return condition

    play = Play(probes=Probes(answer, cause=lambda _: Cause("cooling", "88 °C")))
    play.rounds(12)
    verdicts = play.rounds(6, one_slow)
    assert restarts(verdicts) == expected
    assert set(asked) == {(("node3", "1"), 39.0)}  # since its first slow round
    assert verdicts[-1].cause == Cause("cooling", "88 °C")
    assert str(verdicts[-1].evidence).endswith(" jobs" + why_not)


def test_what_test_kernels_say_later_is_told_once() -> None:
    answers: dict[str, Condition] = {"now": "not known"}
    play = Play(probes=Probes(lambda *_: answers["now"]))
    play.rounds(12)
    [first] = play.rounds(10, one_slow)
    answers["now"] = "well"
    [second] = play.rounds(10, one_slow)
    assert second.action == "report"
    assert str(first.evidence).partition("no restart")[0] == str(second.evidence).partition("no restart")[0]
    assert str(second.evidence).endswith("since test kernels find its device well: its work or a link is the reason")


def test_test_kernels_are_asked_until_they_answer() -> None:
    answers: dict[str, Condition] = {"now": "not known"}
    play = Play(probes=Probes(lambda *_: answers["now"]))
    play.rounds(12)
    assert restarts(play.rounds(10, one_slow)) == []
    answers["now"] = "slow"
    [verdict] = play.rounds(1, one_slow)
    assert verdict.action == "restart"
    assert str(verdict.evidence).startswith("rank 5 on node3 gpu 1: still slow: at least 29 % slower, ")
    assert play.rounds(10, one_slow) == []


def test_test_kernels_that_agree_are_enough_for_a_rank_that_was_slow_from_the_start() -> None:
    assert restarts(Play(probes=Probes(lambda *_: "slow")).rounds(30, one_slow)) == [("node3", "1")]


@pytest.mark.parametrize("is_over", [True, False])
def test_if_it_is_not_known_since_when_a_rank_is_slow_all_that_test_kernels_said_counts(*, is_over: bool) -> None:
    asked = []

    def answer(_: tuple[str, str], since_s: float) -> Condition:
        asked.append(since_s)
        return "well"

    play, worker = Play(probes=Probes(answer)), ("node3", "rank 5")
    if is_over:
        play.rounds(12)
    else:  # rounds without a time
        for _ in range(8):
            play.analysis.update({(f"node{rank // 2 + 1}", f"rank {rank}"): [one_slow(rank)] for rank in range(RANKS)})
    episode = play.analysis.episode(worker)
    assert (episode is None) == is_over
    assert play.readings.why_not(Verdict(*worker, 1.3, "slow", Evidence(*worker, Slow(1.3, "peers")))) is not None
    assert asked == [-math.inf]


def test_a_rank_that_was_as_slow_on_another_node_is_only_reported() -> None:
    kept = Kept()
    play = Play(kept=kept)
    play.rounds(12)
    assert restarts(play.rounds(6, one_slow)) == [("node3", "1")]

    for section in ("forward", "step"):  # which may be around it
        moved = Play(kept=kept, section=section, tags=lambda rank: {"host": "node9"} if rank in {4, 5} else {})
        moved.rounds(12)
        verdicts = moved.rounds(6, one_slow)
        assert [verdict.host for verdict in verdicts] == ["node9"]
        assert restarts(verdicts) == []
        why_not = "no restart, since it was slow on node3, too: its share of the work may be larger"
        assert str(verdicts[-1].evidence).endswith(f" jobs; {why_not}")


def test_a_restart_for_a_slow_rank_must_be_worth_it() -> None:
    play = Play(cost_s=30.0)
    play.rounds(12)
    [verdict] = play.rounds(20, one_slow)
    assert verdict.action == "report"
    assert "; 2 s lost in 9 s; a restart costs 30 s (as given): not yet" in str(verdict.evidence)
    [due] = play.rounds(40, one_slow)
    assert re.match(
        r"rank 5 on node3 gpu 1: still slow: at least 29 % slower, 3\d s lost in \d+ s, in the section",
        str(due.evidence),
    )
    assert str(due.evidence).endswith("now, since it is likely to lose more than that")
    assert restarts([due]) == [("node3", "1")]


def test_a_rank_that_is_slow_at_times_has_an_account_and_its_phases_are_recognised() -> None:
    play = Play(cost_s=1000.0)
    play.rounds(12)
    found = []
    for rounds in (10, 17, 28):  # what is not much longer than before is not said again
        for _ in range(2):
            found += play.rounds(rounds, one_slow)
            found += play.rounds(40)
    assert restarts(found) == []
    # The last length is as those that ended let expect, so that it is over is the first word of it
    assert [verdict.severity for verdict in found if verdict.severity == "well again"] == ["well again"] * 3
    assert len(found) < 6
    assert str(found[-1].evidence).startswith(
        "rank 5 on node3 gpu 1: was slow for 81 s, 18 s lost, in the section forward; the 5th time, 52 s"
    )
    assert str(found[-1].evidence).endswith("; looks like a phase; more of the same is not reported for a day")


def test_a_rank_in_a_declared_phase_is_not_judged() -> None:
    play = Play()
    play.rounds(12)
    play.phases = {"a process": PhaseRecord("node3", "checkpoint", 1, running=True)}
    assert play.rounds(20, one_slow) == []


def test_all_ranks_of_a_node_that_become_slow_are_one_verdict_against_the_node() -> None:
    play = Play()
    play.rounds(12)
    verdicts = play.rounds(6, lambda rank: 1.3 if rank in {4, 5} else 1.0)
    assert restarts(verdicts) == [("node3", None)]
    assert str(verdicts[-1].evidence).startswith("node3: 30 % slower")
    assert "all its 2 ranks" in str(verdicts[-1].evidence)


def test_a_slow_rank_is_restarted_once_it_is_certain_that_it_has_become_slow() -> None:
    """Its peers may show it before its own past does."""
    play = Play()
    play.rounds(12)
    analysis = play.analysis
    certain = analysis.became_slow
    analysis.became_slow = lambda device: False  # type: ignore[method-assign]  # noqa: ARG005
    update = analysis.update

    def by_peers_alone(readings: Round, now_s: float) -> list[Verdict]:
        return [
            replace(verdict, evidence=replace(verdict.evidence, own_past=False)) for verdict in update(readings, now_s)
        ]

    analysis.update = by_peers_alone  # type: ignore[assignment]
    refused = play.rounds(8, one_slow)
    assert restarts(refused) == []
    assert "may be larger" in str(refused[-1].evidence)
    analysis.became_slow = certain  # type: ignore[method-assign]
    assert restarts(play.rounds(2, one_slow)) == [("node3", "1")]
    assert play.rounds(20, one_slow) == []


@pytest.mark.parametrize(
    ("tags", "where"),
    [
        ({"host": "n", "rank": "3", "gpu": "1"}, "rank 3 on n gpu 1"),
        ({"host": "n", "rank": "3"}, "rank 3 on n"),
        ({"host": "n", "gpu": "1"}, "n gpu 1"),
        ({"host": "n", "process": "99"}, "process 99 on n"),
    ],
)
def test_a_worker_is_called_as_it_is_known(tags: dict[str, str], where: str) -> None:
    worker = Worker.of(tags)
    evidence = Evidence(worker.host, worker.gpu or None, Slow(1.2, "peers"), worker=worker.process)
    assert wording.accused(evidence) == where


def test_all_sections_of_all_launches_together_have_the_whole_budget() -> None:
    shares = sum(budget_share(launch, section) for launch in range(500) for section in range(500))
    assert shares == pytest.approx(0.1, abs=0.001)
    assert shares < 1
