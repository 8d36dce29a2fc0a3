"""Whatever a process wrote, in whatever order: it is read, and what is quoted was written.

Of errors that were raised while others were handled, the tracebacks are Python's own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

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


class Banana(Exception):  # noqa: N818 - no name that an error usually has
    """An error of the program's own."""


TYPES = (KeyError, OSError, RuntimeError, ValueError, ConnectionResetError, MemoryError, TimeoutError, Banana)
SAID = (
    "",
    "shard 7",
    "Connection reset by peer",
    "CUDA out of memory",
    "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4343",
)


def caught(raise_it: Callable[[], object]) -> BaseException:
    """Return an error with the traceback that it got when it was raised."""
    try:
        raise_it()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def raised(error: BaseException) -> BaseException:
    def raise_it() -> None:
        raise error

    return caught(raise_it)


def raised_from(cause: BaseException | None, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return raised(error)


def raised_during(before: BaseException, error: BaseException) -> BaseException:
    error.__context__ = before
    return raised(error)


def with_note(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


plain = st.builds(lambda kind, said: kind(said), st.sampled_from(TYPES), st.sampled_from(SAID))
no_syntax = st.builds(lambda: caught(lambda: compile("x = = 1\n", "settings.py", "exec")))
errors = st.recursive(
    st.one_of(plain.map(raised), no_syntax, st.just(ValueError("step 7\nwas not saved")).map(raised)),
    lambda inner: st.one_of(
        st.builds(raised_from, st.none() | inner, plain),
        st.builds(raised_during, inner, plain),
        st.builds(with_note, inner, st.sampled_from(["on node7", "No space left on device"])),
        st.builds(lambda members: raised(ExceptionGroup("several", members)), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@given(
    errors,
    st.builds(lambda kind: kind("shard 7"), st.sampled_from([KeyError, ValueError, MemoryError, Banana])),
    st.sampled_from(PREFIXES[:-1]),
)
def test_of_an_error_that_was_raised_from_another_one_the_raised_one_is_quoted(
    cause: BaseException, error: BaseException, prefix: str
) -> None:
    written = "".join(traceback.format_exception(raised_from(cause, error))).splitlines()
    quote = traceback.format_exception_only(error)[0].strip()
    found = complaints_of([f"{prefix}{line}" for line in written])
    assert (found[0].quote, found[0].went_on) == (quote, False), "\n".join(written)
