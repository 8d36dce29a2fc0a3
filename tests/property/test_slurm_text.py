"""What holds for whatever Slurm says, and for whichever nodes are bad."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.allocation.slurm_text import (
    addresses_of_nodes,
    excluded_of_job,
    gpus_of_job,
    groups_of_nodes,
    nodes_to_avoid,
    parts_of_job,
    record_of_job,
    seconds_of_time_left,
    time_to_save,
    words_of_sinfo,
)
from laggard.resilience.errors import UsageError

hosts = st.frozensets(st.sampled_from([f"n{number}" for number in range(6)]))


@given(st.text(alphabet="n019|+-_*:=,[] \nNodesGRESgpu()"))
def test_no_text_of_slurm_makes_reading_it_fail_but_for_a_list_of_nodes_that_is_none(said: str) -> None:
    words_of_sinfo(said)
    seconds_of_time_left(said)
    addresses_of_nodes(said)
    parts = parts_of_job(said, "1")
    time_to_save(parts)
    record = record_of_job(said, "1")
    with contextlib.suppress(UsageError):
        groups_of_nodes(parts)
    with contextlib.suppress(UsageError):
        gpus_of_job(record)
    with contextlib.suppress(UsageError):
        excluded_of_job(record)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_the_time_left_is_the_one_that_was_written(days: int, hours: int, minutes: int, seconds: int) -> None:
    written = f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    assert seconds_of_time_left(written) == 86400 * days + 3600 * hours + 60 * minutes + seconds


@given(hosts, hosts, hosts, hosts, st.integers(1, 4))
def test_a_job_that_is_requeued_never_waits_for_ever_because_of_us(
    users: frozenset[str], bad: frozenset[str], well: frozenset[str], sound: frozenset[str], n_nodes: int
) -> None:
    bad, well = bad - users, well - users  # what the user excludes is never ours
    avoided = frozenset(nodes_to_avoid(sorted(users), bad, well, sound, n_nodes))
    assert users <= avoided <= users | bad
    if len(sound - users) >= n_nodes:
        assert len(sound - avoided) >= n_nodes
    if len(sound - users - bad) >= n_nodes:
        assert bad <= avoided
