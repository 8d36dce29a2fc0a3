"""Wrong usage is one sentence that names the value and the way out."""

from __future__ import annotations

import pytest

from resilience.options import JobOptions, UsageError
from resilience.policy import Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            JobOptions(local_nodes=3, nodes=4),
            "--nodes=4 is more than the allocation of 3: use at most 3, or ask for more",
        ),
        (JobOptions(local_nodes=3, nodes=0), "--nodes=0 leaves no node to run on: use 1 to 3"),
        (JobOptions(local_nodes=3, nodes=-1), "--nodes=-1 leaves no node to run on: use 1 to 3"),
        (JobOptions(local_nodes=3, idle=3), "--idle=3 leaves no node to run on: the allocation has 3, use 0 to 2"),
        (JobOptions(local_nodes=3, idle=-1), "--idle=-1 leaves no node to run on: the allocation has 3, use 0 to 2"),
        (JobOptions(local_nodes=3, nodes=3, idle=1), "--nodes=3 and --idle=1 are more than the allocation of 3"),
        (JobOptions(exhaust_resources=True), "--exhaust-resources says how far to relaunch, so it needs --resilient"),
        (JobOptions(local_nodes=0), "--local-nodes=0 is out of range: 1 to 250 virtual nodes are possible"),
        (JobOptions(local_nodes=251), "--local-nodes=251 is out of range"),
    ],
)
def test_wrong_usage_is_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.settings()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["soon", "0", "-3", "inf", "nan", ""])
def test_a_wrong_hang_timeout_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"--hang-timeout={text} is no time: give 1 to 1000000 seconds, or auto"):
        JobOptions(hang_timeout=text).hang_timeout_s()


def test_a_hang_timeout_is_a_number_of_seconds_or_derived_or_off() -> None:
    assert [JobOptions(hang_timeout=text).hang_timeout_s() for text in ("2.5", "auto", None)] == [2.5, "auto", None]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (JobOptions(local_nodes=3), 3),
        (JobOptions(local_nodes=3, idle=1), 2),
        (JobOptions(local_nodes=3, nodes=1), 1),
        (JobOptions(local_nodes=3, nodes=1, idle=1), 1),
    ],
)
def test_the_nodes_in_use_follow_from_nodes_and_idle(options: JobOptions, nodes: int) -> None:
    assert options.settings() == Settings(nodes)
