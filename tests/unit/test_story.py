"""A job's story: at most twenty lines, each loss with its cause and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.causes import Cause
from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Evidence, Verdict
from laggard.resilience.decision.events import ProgramHung
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.reasons import Change
from laggard.resilience.reading.signatures import Kind
from laggard.resilience.record.effective_time import EffectiveTime, TimeParts, effective_time
from laggard.resilience.record.entries import LaunchEndCause
from laggard.resilience.record.timeline import Launch, LogLine, RecordedFailure, RecordedVerdict, Timeline
from laggard.resilience.views.story import MAX_LINES, story
from laggard.telemetry.course import Progress

T0 = 1_700_000_000.0
GAP = {"stop_s": 1.0, "fence_s": 0.0, "nodes_s": 0.5}


def trouble(kind: Kind, quote: str) -> Failure:
    return Failure("node2", 1, 7, 1, 1, T0, 9.0, quote, "an error", kind, "")


def failed(
    number: int, began_s: float, ended_s: float, *, cause: LaunchEndCause = "failure", wait_s: float = 0.0
) -> Launch:
    """Return a launch that made progress for half of its time."""
    middle_s = (began_s + ended_s) / 2
    steps = ((began_s + 1, 100.0 * number), (middle_s, 100.0 * number + 100))
    progress = (Progress(T0 + began_s, 0, None), *(Progress(T0 + at_s, 0, step) for at_s, step in steps))
    gap = GAP if number else {}
    why = (trouble("program", f"trouble {number}"), Change())
    return Launch(number, ("node1", "node2"), (), T0 + began_s, T0 + ended_s, why, gap, (), cause, wait_s, progress)


def failure(time_s: float, kind: Kind) -> RecordedFailure:
    return RecordedFailure(T0 + time_s, trouble(kind, "something"))


def job(*launches: Launch, ended_s: float, exit_code: int | None = 1) -> Timeline:
    return Timeline("train-a", "", "", T0, T0 + ended_s, exit_code, {"node1": (), "node2": ()}, launches, (), ())


def told(timeline: Timeline) -> list[str]:
    return story(timeline, effective_time(timeline), running=False)


@pytest.mark.parametrize(
    ("kind", "to_do"),
    [
        ("program", "fix the program"),
        ("hardware", "have node2 checked"),
        ("network", "the links of node2"),
        ("capacity", "more room on node2"),
        ("transient", "nothing, unless it happens again"),
        ("unknown", "see the end of its standard error"),
    ],
)
def test_a_failure_has_its_loss_its_cause_and_what_to_do(kind: Kind, to_do: str) -> None:
    timeline = replace(job(failed(0, 10, 310), ended_s=320), failures=(failure(309, kind),))
    lines = told(timeline)
    assert lines[0] == "train-a: exit code 1 after 5 min 20 s, 1 launch on node1, node2"
    assert lines[1] == "effective training time: 2 min 29 s of 5 min 20 s (47 %), by the steps that it reported"
    at = next(number for number, line in enumerate(lines) if "trouble 0" in line)
    assert lines[at].startswith("   5:10  launch 0 ended: rank 1 on node2 exited with 1 after 9.0 s: trouble 0")
    assert lines[at].endswith("2 min 30 s lost since the last work that was kept")
    assert to_do in lines[at + 1]
    assert "checkpoint more often" in lines[at + 1]


@pytest.mark.parametrize(
    ("cause", "to_do"),
    [
        ("node lost", "ask the nodes' administrator"),
        ("hang", "see what its ranks waited for"),
        ("stop", "nothing: it was asked to stop"),
        ("exclusion", "see the job's log"),
    ],
)
def test_every_kind_of_end_says_what_to_do(cause: LaunchEndCause, to_do: str) -> None:
    text = "\n".join(told(job(failed(0, 0, 100, cause=cause), ended_s=101)))
    assert "trouble 0" in text
    assert to_do in text


def test_a_slow_device_is_named_with_what_was_found() -> None:
    evidence = Evidence("node2", "0", Slow(2.0, "peers", 3))
    verdict = RecordedVerdict(T0 + 20, Verdict("node2", "0", 2.0, "slow", evidence, Cause("heat")))
    text = "\n".join(told(replace(job(failed(0, 0, 100), ended_s=100), verdicts=(verdict,))))
    assert "launch 0 waited 15.0 s for a slow device: node2 gpu 0: 100 % slower than its 3 peers" in text
    assert (
        "run 'laggard doctor' on node2 or replace it: --resilient does, with a reserve (--idle); likely cause: heat"
        in text
    )


@given(st.integers(0, 60), st.booleans())
def test_a_story_has_at_most_twenty_lines_and_each_loss_says_what_to_do(n_launches: int, known: bool) -> None:
    launches = [failed(n, 20 * n, 20 * n + 12 + n % 5, wait_s=3 * (n % 2)) for n in range(n_launches)]
    if not known:
        launches = [replace(launch, progress=()) for launch in launches]
    timeline = job(*launches, ended_s=20 * n_launches + 1)
    lines = told(timeline)
    assert len(lines) <= MAX_LINES
    losses = [number for number, line in enumerate(lines) if line[4:5] == ":"]
    assert all("to do: " in lines[number + 1] for number in losses)
    assert sum("launch" in lines[number] for number in losses) >= min(n_launches, 4)
    if n_launches > 10:
        assert "smaller losses" in lines[-1]


def test_the_largest_losses_are_told_in_the_order_in_which_they_happened() -> None:
    launches = [failed(n, 100 * n, 100 * n + (90 if n == 7 else 10)) for n in range(30)]
    lines = told(job(*launches, ended_s=3000))
    numbers = [int(line.split("launch ")[1].split()[0]) for line in lines if " ended: rank 1" in line]
    assert 7 in numbers
    assert numbers == sorted(numbers)


def test_a_job_that_ended_before_its_first_launch_says_why() -> None:
    line = LogLine(T0 + 1, "end", "1 good node is left for --nodes=2")
    lines = told(replace(job(ended_s=2, exit_code=69), log=(line,)))
    assert lines[0] == "train-a: exit code 69 after 2.0 s, 0 launches"
    assert lines[1] == "effective training time: not known, since no launch began"
    assert "it ended before its first launch: 1 good node is left for --nodes=2" in lines
    given_up = told(replace(job(ended_s=2, exit_code=None), error="node1 did not start"))
    assert "it ended before its first launch: node1 did not start" in given_up
    killed = told(job(ended_s=2, exit_code=None))
    assert "it ended before its first launch: it was killed before it could say why" in killed


def test_a_job_without_steps_or_commits_is_never_called_effective() -> None:
    timeline = job(replace(failed(0, 0, 100), progress=(), cause="end"), ended_s=100, exit_code=0)
    lines = told(timeline)
    assert lines[1].startswith("effective training time: not known, since the program reports no steps")
    assert "report steps with Job.current().progress(step)" in lines[2]


def reached(number: int, began_s: float, ended_s: float, *steps: tuple[float, float], **more: Any) -> Launch:
    """Return a launch that was at some steps at some times."""
    progress = (Progress(T0 + began_s, 0, None), *(Progress(T0 + at_s, 0, step) for at_s, step in steps))
    given = {"cause": "failure", "why": (trouble("program", f"trouble {number}"), Change()), "progress": progress}
    return Launch(number, ("node1", "node2"), (), T0 + began_s, T0 + ended_s, **given | more)


def test_the_story_of_a_job_that_failed_twice_names_every_loss_in_order() -> None:
    first = reached(0, 20, 320, (50, 0), (250, 200), wait_s=30)
    second = reached(1, 360, 500, (370, 100), (490, 220), gap_s={"stop_s": 2.0, "fence_s": 1.0, "nodes_s": 7.0})
    third = reached(2, 504, 700, (510, 220), (700, 410), cause="end", why=(), gap_s={"stop_s": 1.0, "nodes_s": 3.0})
    timeline = replace(
        job(first, second, third, ended_s=701, exit_code=0),
        failures=(failure(319, "program"), failure(499, "transient")),
    )
    assert told(timeline) == [
        "train-a: exit code 0 after 11 min 41 s, 3 launches on node1, node2",
        "effective training time: 6 min 50 s of 11 min 41 s (58 %), by the steps that it reported",
        "the rest: lost work 3 min 0 s, starting 66.0 s, back-off 30.0 s, relaunching 14.0 s, ending 1.0 s",
        "   0:00  starting took 66.0 s: 20.0 s before launch 0,"
        " 46.0 s from the starts of launches to their first progress",
        "         to do: keep compiled code and data where the next launch finds them",
        "   5:20  launch 0 ended: rank 1 on node2 exited with 1 after 9.0 s: trouble 0 (program: an error);"
        " on the same nodes; 2 min 50 s lost since the last work that was kept",
        "         to do: fix the program: its standard error has the traceback;"
        " to lose less, commit or checkpoint more often",
        "   5:20  waits after failures took 30.0 s",
        "         to do: fix what failed or did not answer; --backoff sets the first wait",
        "   6:00  2 relaunches took 14.0 s (with the back-off: 3.0 s to end the program, 1.0 s to fence it,"
        " 10.0 s to change the nodes)",
        "         to do: nothing: the old launch's processes have to end, and nodes to join",
        "   8:20  launch 1 ended: rank 1 on node2 exited with 1 after 9.0 s: trouble 1 (program: an error);"
        " on the same nodes; 10.0 s lost since the last work that was kept",
        "         to do: nothing, unless it happens again",
    ]


def whole(began_s: float, first_s: float, *, ended_s: float = 1000) -> Timeline:
    """Return a job of one launch that made progress from some time on until its end."""
    only = reached(0, began_s, ended_s, (first_s, 0), (ended_s, 100), cause="end", why=())
    return job(only, ended_s=ended_s, exit_code=0)


@pytest.mark.parametrize(
    ("began_s", "first_s", "to_do"),
    [
        (100, 201, "keep compiled code and data"),
        (100, 200, "keep compiled code and data"),
        (100, 199, "many nodes take longer to start"),
    ],
)
def test_a_long_start_is_the_programs_unless_the_nodes_took_longer(began_s: float, first_s: float, to_do: str) -> None:
    assert to_do in told(whole(began_s, first_s))[4]


@pytest.mark.parametrize(("start_s", "is_told"), [(0.049, False), (0.051, True)])
def test_a_loss_that_would_read_0_is_not_told(start_s: float, is_told: bool) -> None:
    assert any("starting took" in line for line in told(whole(0, start_s))) == is_told


@pytest.mark.parametrize(
    ("gap_s", "to_do"),
    [
        ({"stop_s": 3.0, "fence_s": 2.0, "nodes_s": 1.0}, "let the program end soon after SIGTERM"),
        ({"stop_s": 2.0, "fence_s": 3.0, "nodes_s": 1.0}, "then give --state-dir a faster disk"),
        ({"stop_s": 1.0, "fence_s": 2.0, "nodes_s": 3.0}, "the old launch's processes have to end, and nodes to join"),
    ],
)
def test_what_to_do_about_relaunches_is_about_their_longest_phase(gap_s: dict[str, float], to_do: str) -> None:
    first = reached(0, 0, 100, (0, 0), (100, 100))
    second = reached(1, 106, 200, (106, 100), (200, 200), gap_s=gap_s, cause="end", why=())
    lines = told(job(first, second, ended_s=200, exit_code=0))
    at = next(number for number, line in enumerate(lines) if "1 relaunch took 6.0 s: " in line)
    assert to_do in lines[at + 1]


def test_the_gap_after_the_only_launch_is_no_relaunch_yet() -> None:
    timeline = job(reached(0, 0, 100, (0, 0), (100, 100)), ended_s=100, exit_code=None)
    lines = story(timeline, effective_time(timeline, T0 + 130), running=True)
    assert lines[0] == "train-a: running for 2 min 10 s, 1 launch so far on node1, node2"
    assert "relaunching 30.0 s" in lines[2]
    assert not any("relaunch took" in line for line in lines)


def test_work_that_was_repeated_is_told_with_what_to_look_for() -> None:
    first = reached(0, 0, 200, (0, 0), (200, 200))
    second = reached(1, 200, 300, (200, 200), (300, 300))
    third = reached(2, 300, 500, (300, 250), (500, 450), cause="end", why=())
    lines = told(job(first, second, third, ended_s=500, exit_code=0))
    assert not any("launch 2 repeated" in line for line in lines)
    third = reached(2, 300, 500, (300, 150), (500, 350), cause="end", why=())
    lines = told(job(first, second, third, ended_s=500, exit_code=0))
    at = next(number for number, line in enumerate(lines) if "launch 2 repeated" in line)
    assert lines[at] == "   5:00  launch 2 repeated 50.0 s of work that was kept before"
    assert "its newest checkpoint" in lines[at + 1]


@pytest.mark.parametrize(("lost_s", "is_advised"), [(59.9, False), (60.1, True)])
def test_more_frequent_checkpoints_are_advised_if_a_minute_is_lost(lost_s: float, is_advised: bool) -> None:
    text = "\n".join(told(job(reached(0, 0, 500, (0, 0), (500 - lost_s, 100)), ended_s=500)))
    assert ("checkpoint more often" in text) == is_advised
    assert "lost since the last work that was kept" in text


def test_of_a_launch_without_steps_the_loss_is_unknown_and_may_be_the_greatest() -> None:
    launches = [replace(failed(number, 20 * number, 20 * number + 12), progress=()) for number in range(12)]
    lines = told(job(*launches, ended_s=240))
    assert lines[2] == "         to do: report steps with Job.current().progress(step), or commit to State"
    assert sum("how much of its work was lost is not known" in line for line in lines) == 7
    assert lines[-1] == "         6 smaller losses, 88.0 s in all: 'laggard report train-a'"


def test_losses_that_are_not_told_are_summed_up() -> None:
    launches = [reached(n, 100 * n, 100 * n + 100, (100 * n, n), (100 * n + 90, n + 1)) for n in range(12)]
    lines = told(job(*launches, ended_s=1200))
    assert len(lines) == MAX_LINES
    assert lines[-1] == "         4 smaller losses, 40.0 s in all: 'laggard report train-a'"


def test_a_job_that_laggard_gave_up_after_a_launch_was_in_trouble_of_its_own() -> None:
    lines = told(replace(job(failed(0, 0, 100), ended_s=101, exit_code=None), error="the disk is full"))
    assert lines[0].startswith("train-a: no end recorded after")
    assert "it ended because of an error in laggard: the disk is full" in lines
    running = job(ended_s=2, exit_code=None)
    assert not any("it ended" in line for line in story(running, effective_time(running, T0 + 2), running=True))


def accused(time_s: float, slowdown: float) -> RecordedVerdict:
    evidence = Evidence("node2", "0", Slow(2.0, "peers", 3))
    return RecordedVerdict(T0 + time_s, Verdict("node2", "0", slowdown, "slow", evidence, Cause("heat"), "restart"))


@pytest.mark.parametrize(("at_s", "times"), [(50, 1), (99.99, 1), (100, 1)])
def test_the_evidence_against_a_device_that_was_left_out_is_told_once(at_s: float, times: int) -> None:
    first = reached(0, 0, 100, (0, 0), (100, 100), cause="exclusion", excluded=("node2",))
    second = replace(reached(1, 101, 200, (101, 100), (200, 200), cause="end", why=()), nodes=("node1",))
    lines = told(replace(job(first, second, ended_s=200, exit_code=0), verdicts=(accused(at_s, 2.0),)))
    assert sum("100 % slower" in line for line in lines) == times
    text = "\n".join(lines)
    assert ("waited 25.0 s for a slow device" in text) == (at_s == 50)
    assert "run 'laggard doctor' on node2 before it is used again; likely cause: heat" in text


def test_the_stacks_of_a_hang_are_named() -> None:
    hung = RecordedFailure(T0 + 99, ProgramHung(60.0, suspect="node2"), "launch-0-stacks")
    lines = told(replace(job(failed(0, 0, 100, cause="hang"), ended_s=101), failures=(hung,)))
    assert any("see what its ranks waited for: launch-0-stacks beside the report" in line for line in lines)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("start_s", "starting took"),
        ("relaunch_s", "1 relaunch took"),
        ("waiting_s", "waits after failures took"),
        ("repeated_s", "launch 0 repeated"),
        ("slow_s", "launch 0 waited"),
        ("lost_s", "lost since the last work that was kept"),
    ],
)
def test_a_loss_is_told_if_it_does_not_read_0(part: str, words: str) -> None:
    first = failed(0, 0, 100, wait_s=0.5)
    second = replace(failed(1, 101, 200), nodes=("node1",), cause="end", why=())
    timeline = replace(job(first, second, ended_s=200, exit_code=0), verdicts=(accused(50, 2.0),))
    for seconds, is_told in ((0.05, True), (0.0499, False)):
        parts = TimeParts(**{part: seconds})
        times = EffectiveTime("steps", 200.0, parts, (parts, TimeParts()))
        text = "\n".join(story(timeline, times, running=False))
        assert (words in text) == is_told


def test_the_first_launch_that_was_followed_by_a_pause_dates_the_back_off() -> None:
    launches = [failed(0, 0, 100), failed(1, 100, 200, wait_s=0.5), failed(2, 201, 300, wait_s=30), failed(3, 330, 400)]
    line = next(line for line in told(job(*launches, ended_s=400)) if "waits after" in line)
    assert line == "   3:20  waits after failures took 30.5 s"
