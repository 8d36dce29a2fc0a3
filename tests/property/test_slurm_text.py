"""What holds for whatever Slurm says."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.allocation.slurm_text import (
    addresses_of_nodes,
    gpus_of_job,
    groups_of_nodes,
    parts_of_job,
    record_of_job,
    seconds_of_time_left,
    time_to_save,
    words_of_sinfo,
)
from laggard.resilience.errors import UsageError


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


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_the_time_left_is_the_one_that_was_written(days: int, hours: int, minutes: int, seconds: int) -> None:
    written = f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    assert seconds_of_time_left(written) == 86400 * days + 3600 * hours + 60 * minutes + seconds
