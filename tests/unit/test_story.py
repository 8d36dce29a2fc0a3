"""A job's story: at most twenty lines, each loss with its cause and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.causes import Cause
from laggard.detectors.evidence import Said
from laggard.detectors.verdict import Evidence, Verdict
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.reasons import Change
from laggard.resilience.decision.signatures import Kind
from laggard.resilience.record.effective_time import effective_time
from laggard.resilience.record.entries import LaunchEndCause
from laggard.resilience.record.timeline import Launch, LogLine, RecordedFailure, RecordedVerdict, Timeline
from laggard.resilience.views.story import MAX_LINES, story
from laggard.telemetry.course import Progress

T0 = 1_700_000_000.0
GAP = {"stop_s": 1.0, "fence_s": 0.0, "nodes_s": 0.5}


def trouble(kind: Kind, quote: str) -> Failure:
    return Failure("node2", 1, 7, 1, 1, T0, 9.0, quote, "an error", kind, "once", "")


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
    return Timeline("train-a", "", "", 0, T0, T0 + ended_s, exit_code, {"node1": (), "node2": ()}, launches, (), ())


def told(timeline: Timeline) -> list[str]:
    return story(timeline, effective_time(timeline), running=False)


@pytest.mark.parametrize(
    ("kind", "to_do"),
    [
        ("program", "mend the program"),
        ("hardware", "have node2 checked"),
        ("network", "the links of node2"),
        ("capacity", "more room on node2"),
        ("transient", "nothing if it stays at one"),
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
        ("node lost", "ask who runs the nodes"),
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
    evidence = Evidence("node2", "0", Said("node2 gpu 0: half as fast"))
    verdict = RecordedVerdict(T0 + 20, Verdict("node2", "0", 2.0, "slow", evidence, Cause("heat")))
    text = "\n".join(told(replace(job(failed(0, 0, 100), ended_s=100), verdicts=(verdict,))))
    assert "launch 0 waited 15.0 s for a slow device: node2 gpu 0: half as fast" in text
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
