"""Which checkpoint a training goes on from, and what it says of that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from laggard.kvstore.errors import DamagedCheckpointError, NoCheckpointError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the program says about where to go on."""

    step: int | None = None  # of the checkpoint; None: the newest one
    fresh: bool = False  # whether to begin anew


def candidates(wish: Wish, steps: Sequence[int], *, is_relaunch: bool) -> Sequence[int]:
    """Return the steps of the checkpoints to go on from, in the order in which to try them.

    Parameters
    ----------
    wish
        What the program says.
    steps
        Those of all complete checkpoints, the newest first.
    is_relaunch
        Whether an earlier launch of this job has done as the program says: what it saved since is gone on from.
    """
    if is_relaunch or wish == Wish():
        return steps
    if wish.fresh or wish.step is None:
        return ()
    if wish.step not in steps:
        raise NoCheckpointError(wish.step, f"complete ones: {list(steps) or 'none'}, newest first")
    return (wish.step,)


def first_intact(steps: Sequence[int], read: Callable[[int], tuple[T, str]]) -> tuple[tuple[int, T] | None, list[str]]:
    """Return the first checkpoint that can be read, with its content, and what is wrong with those before it.

    Parameters
    ----------
    steps
        Of the checkpoints to try, in this order.
    read
        Returns the content of one, and what is wrong with it on any rank; empty if nothing is.

    Raises
    ------
    DamagedCheckpointError
        If there are some, and none can be read: to begin anew would lose the training.
    """
    wrong: list[str] = []
    for step in steps:
        content, reason = read(step)
        if not reason:
            return (step, content), wrong
        wrong.append(reason)
    if wrong:
        raise DamagedCheckpointError(steps[0], wrong[0], None)
    return None, []


def said(wish: Wish, steps: Sequence[int], chosen: int | None, wrong: Sequence[str]) -> str:
    """Return what is said of a choice; empty if it is the newest checkpoint."""
    newer = steps[: steps.index(chosen)] if chosen is not None else steps
    if not newer:
        return ""
    names = f"checkpoint{'s' * (len(newer) > 1)} of step {', '.join(map(str, newer))}"
    if chosen is None:
        return f"the training begins anew (fresh=True), and sets aside the {names}"
    why = f"cannot be read ({'; '.join(wrong)})" if wrong else f"set aside, since step={wish.step} was asked for"
    is_or_are = "" if wrong else ("is " if len(newer) == 1 else "are ")
    return f"the {names} {is_or_are}{why}; the training goes on from step {chosen}"


def said_of_earlier_run(step: int, arguments: str, own: str, file: Path | None) -> str:
    """Return what is said of a checkpoint that an earlier run or job saved, with the arguments of both."""
    other = f" with other arguments ({arguments or 'none'})" if arguments != own else ""
    or_file = f", or delete {file}" if file else ", or take another --state-dir"
    return (
        f"the training goes on from step {step}, which an earlier run saved{other}; to begin anew: fresh=True{or_file}"
    )
