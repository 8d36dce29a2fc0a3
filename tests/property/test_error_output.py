"""Whatever a process wrote, in whatever order: it is read, and what is quoted was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.reading.error_output import MAX_QUOTE, complaints_of, root_cause_of

PREFIXES = [
    "",
    "[rank5]: ",
    "[1,3]<stderr>:",
    "node7: ",
    "(f pid=7, ip=10.0.0.3) ",
    "2026-05-12 10:00:01,123 - a - INFO - ",
]
PRINTED = "".join(map(chr, range(32, 127)))
PIECES = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 3, in step',
    "    labels['x']",
    "KeyError: 'x'",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "torch.distributed.DistBackendError: NCCL error, unhandled system error",
    "Last error:",
    "The above exception was the direct cause of the following exception:",
    "+---------------- 2 ----------------",
    "  +-+---------------- 1 ----------------",
    "Error in atexit._run_exitfuncs:",
    "╭───────────────────── Traceback (most recent call last) ──────────────────────╮",
    "╰──────────────────────────────────────────────────────────────────────────────╯",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "Root Cause (first observed failure):",
    "  rank      : 3 (local_rank: 3)",
    "  exitcode  : -9 (pid: 7)",
    "  traceback : Signal 9 (SIGKILL) received by PID 7",
    "thread 'main' panicked at src/main.rs:4:5:",
    "Killed",
    "",
]
lines = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(PREFIXES),
        st.one_of(st.sampled_from(PIECES), st.text(PRINTED, max_size=40)),
    ),
)


@given(st.lists(lines, max_size=30))
def test_what_is_quoted_was_written(written: list[str]) -> None:
    root_cause_of(written)
    whole = "\n".join(written)
    for complaint in complaints_of(written):
        assert len(complaint.quote) <= MAX_QUOTE
        assert complaint.quote.removesuffix(" …") in whole
        assert complaint.quote or complaint.signature is None
