"""The benchmark's jobs that are played side by side."""

from __future__ import annotations

from functools import partial
from itertools import islice

import numpy as np

from benchmarks.job_kinds import DEPENDENT
from benchmarks.side_by_side import play


def test_jobs_side_by_side_have_the_verdicts_and_restarts_that_each_would_have_alone() -> None:
    kind = partial(DEPENDENT["slow runs of 3 rounds on average"], np.random.default_rng(5))
    rounds = list(islice(kind(4, 8), 80))
    together = play(iter([readings.copy() for readings in rounds]), 80, (0.0, 30.0))
    alone = [play(iter([readings[[job]] for readings in rounds]), 80, (0.0, 30.0)) for job in range(4)]
    assert together.restarts[0, -1].any()
    np.testing.assert_array_equal(together.restarts, np.concatenate([each.restarts for each in alone], axis=2))
    np.testing.assert_array_equal(together.first_verdict, np.concatenate([each.first_verdict for each in alone]))
