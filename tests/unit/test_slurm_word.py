"""What Slurm says of a node (``sinfo --format=%T|%E``), and of the time that is left (``squeue --format=%L``)."""

from __future__ import annotations

import pytest

from laggard.resilience.allocation.slurm import seconds_of_time_left, slurm_time_left_s, word_of_sinfo


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("down|Not responding\n", "Slurm says node3 is down: Not responding"),
        ("down*|Not responding\n", "Slurm says node3 is down: Not responding"),
        ("drained|laggard\n", "Slurm says node3 is drained: laggard"),
        ("draining@|reboot ASAP : kernel\n", "Slurm says node3 is draining: reboot ASAP : kernel"),
        ("fail|none\n", "Slurm says node3 is fail"),
        ("allocated*|none\n", "Slurm says node3 does not respond"),
        ("allocated|none\n", ""),
        ("mixed|none\nmixed|none\n", ""),
        ("", ""),
    ],
)
def test_slurm_says_what_is_wrong_with_a_node_and_nothing_if_nothing_is(said: str, word: str) -> None:
    assert word_of_sinfo("node3", said) == word


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0:07\n", 7),
        ("12:34", 754),
        ("3:00:01", 10_801),
        ("23:59:59", 86_399),
        ("1-02:03:04", 93_784),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_the_time_left_is_read_as_slurm_writes_it(said: str, seconds: float | None) -> None:
    assert seconds_of_time_left(said) == seconds


def test_without_a_slurm_job_no_time_limit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm_time_left_s() is None


def test_without_an_answer_no_time_limit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", "")
    assert slurm_time_left_s() is None
