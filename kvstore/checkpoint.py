"""Checkpoints in State: one shard per rank, complete once all ranks have saved theirs, the last few kept.

A shard is one value in State under ``NAME/LAUNCH/STEP/RANK-RANKS``, so it exists whole or not at all, and its
checksums are verified when it is read.  Nothing else is stored: which checkpoints are complete follows from which
shards exist.  Shards of different launches never form one checkpoint, since two launches may reach a step differently.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

from laggard.kvstore.codec import Value
from laggard.kvstore.errors import CorruptValueError, DamagedCheckpointError, NoCheckpointError
from laggard.kvstore.state import State

__all__ = ["Checkpointer"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class _Id:
    """A checkpoint. Those of a later launch are newer, whatever their step: that launch restored an earlier state."""

    launch: int
    step: int
    ranks: int


class Checkpointer:
    """Saves trees of arrays, and finds the newest complete checkpoint after a relaunch.

    Parameters
    ----------
    state : State
        Where the checkpoints are stored.
    name : str
        Prefix of their keys; a program with several checkpointers gives each its own.
    rank, ranks : int
        Which shard belongs to this process, and how many there are.
    keep : int
        How many complete checkpoints to keep; while one is saved, the server needs room for one more.

    Examples
    --------
    >>> checkpoints = Checkpointer(State.current(), rank=rank, ranks=ranks)  # doctest: +SKIP
    >>> step = checkpoints.latest()  # doctest: +SKIP
    >>> weights = initial() if step is None else checkpoints.restore(step)  # doctest: +SKIP
    """

    def __init__(self, state: State, *, name: str = "checkpoint", rank: int = 0, ranks: int = 1, keep: int = 2) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank is {rank}; it must be at least 0 and below ranks, which is {ranks}")
        if keep < 1:
            raise ValueError(f"keep is {keep}; it must be at least 1")
        self._state = state
        self._name = name
        self._rank = rank
        self._ranks = ranks
        self._keep = keep
        self._pattern = re.compile(rf"{re.escape(name)}/(\d+)/(\d+)/(\d+)-(\d+)")

    def save(self, step: int, tree: Value) -> None:
        """Save this rank's shard, and delete checkpoints that are no longer kept.

        Parameters
        ----------
        step : int
            Step of the checkpoint, 0 or higher; saving a step again replaces it.
        tree : Value
            Arrays and other values that State can hold, in dicts and lists.

        Raises
        ------
        UnsupportedValueError, FencedError, StateUnavailableError, StateFullError
            As from any write to State; earlier checkpoints are untouched.
        """
        if step < 0:
            raise ValueError(f"step {step} is negative; steps are numbered from 0")
        self._state[f"{self._name}/{self._state.launch}/{step}/{self._rank}-{self._ranks}"] = tree
        self._drop_old()

    def latest(self, *, before: int | None = None) -> int | None:
        """Return the step of the newest complete checkpoint, or None if there is none.

        Parameters
        ----------
        before : int, optional
            Return the one before the newest checkpoint of this step.
        """
        complete = self._complete()
        if before is not None:
            position = next((n for n, found in enumerate(complete) if found.step == before), -1)
            complete = complete[position + 1 :]
        return complete[0].step if complete else None

    def latest_intact(self) -> int | None:
        """Return the newest step whose shards can all be read; log a warning for each checkpoint that is damaged.

        It reads whole checkpoints, so call it on one rank and pass the result to the others.
        """
        for found in self._complete():
            try:
                for rank in range(found.ranks):
                    self._read(found, rank)
            except DamagedCheckpointError as error:
                _log.warning("%s", error)
            else:
                return found.step
        return None

    def restore(self, step: int, *, rank: int | None = None) -> Value:
        """Read a shard.

        Parameters
        ----------
        step : int
            As returned by `latest`.
        rank : int, optional
            Whose shard, this rank's by default.

        Raises
        ------
        NoCheckpointError
            If there is no complete checkpoint of this step, or it has no such rank.
        DamagedCheckpointError
            If the shard is damaged; the error names the previous checkpoint.
        """
        rank = self._rank if rank is None else rank
        complete = self._complete()
        found = next((found for found in complete if found.step == step), None)
        if found is None:
            raise NoCheckpointError(
                step, f"complete ones: {[found.step for found in complete] or 'none'}, newest first"
            )
        if rank >= found.ranks:
            raise NoCheckpointError(step, f"it has shards of rank 0 to {found.ranks - 1}, not of rank {rank}")
        return self._read(found, rank)

    def _read(self, found: _Id, rank: int) -> Value:
        try:
            return self._state[self._key(found, rank)]
        except CorruptValueError as error:
            raise DamagedCheckpointError(found.step, error.reason, self.latest(before=found.step)) from error
        except KeyError:
            raise NoCheckpointError(found.step, "another rank has just deleted it") from None

    def _key(self, found: _Id, rank: int) -> str:
        return f"{self._name}/{found.launch}/{found.step}/{rank}-{found.ranks}"

    def _present(self) -> dict[_Id, set[int]]:
        """Find the ranks of every checkpoint, complete or not."""
        present: defaultdict[_Id, set[int]] = defaultdict(set)
        for key in self._state:
            if match := self._pattern.fullmatch(key):
                launch, step, rank, ranks = map(int, match.groups())
                present[_Id(launch, step, ranks)].add(rank)
        return present

    def _complete(self) -> list[_Id]:
        """List the complete checkpoints, newest first."""
        return _complete(self._present())

    def _drop_old(self) -> None:
        """Delete checkpoints beyond those kept, and incomplete ones of launches that are over."""
        present = self._present()
        kept = _complete(present)[: self._keep]

        def is_old(found: _Id) -> bool:
            return len(kept) == self._keep and found < kept[-1]

        def is_abandoned(found: _Id) -> bool:
            return found.launch < self._state.launch and len(present[found]) < found.ranks

        old = [found for found in present if is_old(found) or is_abandoned(found)]
        self._state.discard(*(self._key(found, rank) for found in old for rank in present[found]))


def _complete(present: Mapping[_Id, Set[int]]) -> list[_Id]:
    return sorted((found for found, ranks in present.items() if len(ranks) == found.ranks), reverse=True)
