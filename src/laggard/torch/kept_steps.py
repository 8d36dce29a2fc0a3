"""``Resumed.steps``: a loop whose ranks keep their processes when one of them is lost.

At the end of each step a rank keeps what it takes to begin the next one, of the last two steps: no rank is further than
one step ahead of another, since each step needs the gradients of all. If a rank is lost, the others go back to the
newest step that all of them have, a new process takes over its state from one of them, and all go on. Ranks that are
to run elsewhere leave between two steps, and hand over what only they have.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from laggard.kvstore.client.connection import current_session
from laggard.kvstore.errors import FencedError
from laggard.kvstore.membership import SILENCE_S, Formation
from laggard.kvstore.values.blocks import Block
from laggard.kvstore.values.codec import decode, encode
from laggard.torch.buckets import Layout
from laggard.torch.draws import Draws
from laggard.torch.gradients import hold_gradients_back
from laggard.torch.kept_group import KeptGroup, kept_group
from laggard.torch.kept_model import kept_model, why_not
from laggard.torch.own_states import OwnStates
from laggard.torch.partner import Partner
from laggard.torch.position import Position
from laggard.torch.training_state import from_blocks, like_of, mapped, random_states, restore_random_states, to_blocks

# After an error of a collective, how long to wait for word that a rank was lost; without it, the error is our own.
SETTLE_S = 5.0
# PyTorch raises these if a peer is gone, and State if a launch has begun that this process has not adopted yet.
_TROUBLE = (RuntimeError, FencedError)


@dataclass(frozen=True, slots=True)
class _Held:
    """What it takes to begin a step."""

    parts: Mapping[str, Any]  # the state_dicts of all that has a state
    layout: Layout  # that of the buckets
    own: bytes  # what only this rank has, encoded; empty: it is not known


class Steps:
    """The steps of a training; each is run in a ``with`` block."""

    def __init__(self, step: int) -> None:
        self.step = step  # the one to run next

    def until(self, n_steps: int) -> Iterator[Steps]:
        """Yield what to run each step with, until there were so many."""
        while self.step < n_steps:
            yield self

    def __enter__(self) -> int:
        return self.step

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return self._ends(error)

    def _ends(self, error: BaseException | None) -> bool:
        """Take note of the end of a step; return whether its error is dealt with."""
        self.step += error is None
        return False


class KeptSteps(Steps):
    """Steps of which a failed one is run again once a lost rank is replaced; made with all others, or to join them."""

    def __init__(
        self, step: int, model: Any, parts: Mapping[str, Any], position: Position, draws: Draws, group: KeptGroup
    ) -> None:
        super().__init__(step)
        self._model, self._kept = model, kept_model(model)
        self._parts = parts  # all that has a state, by name
        self._position, self._draws = position, draws  # what gives it its data
        self._group = group
        self._membership = group.membership
        self._held: dict[int, _Held] = {}
        self._partner = Partner(group)
        self._own = OwnStates(current_session().environment.endpoint_file.with_name(f"own-{self._membership.rank}"))
        if self._membership.joins:
            self._join()
        else:
            self._hold(None)
            self._membership.offer()

    def _ends(self, error: BaseException | None) -> bool:
        if error is None:
            try:
                before = self._held[self.step].layout
                self.step += 1
                self._hold(before)
                if self._held[self.step].own and self._membership.pauses(self.step):
                    self._pause()
            except _TROUBLE as trouble:
                if not self._recovers(trouble):
                    raise
            return False
        return isinstance(error, _TROUBLE) and self._recovers(error)

    def _hold(self, before: Layout | None) -> None:
        """Keep what it takes to begin this step, in place of that of two steps before; the layout is that of one."""
        is_whole = not hold_gradients_back([self._model])
        parts = {name: _copied(to_blocks(part.state_dict())) for name, part in self._parts.items()} if is_whole else {}
        layout = self._kept.rest(before)
        self._group.settle()
        own = b""
        # Gradients that are not used yet are each rank's own.
        if self._position.is_known and is_whole and not parts.get("gradients"):
            known = {"random": random_states(), "position": self._position.state_dict(), "model": self._kept.own()}
            own = encode("own", known).joined()
        self._keep(_Held(parts, layout, own))

    def _keep(self, held: _Held) -> None:
        self._draws.begin(self.step)
        self._held.pop(self.step - 2, None)
        self._held[self.step] = held
        if held.own:
            self._own.put(self.step, held.own)
        self._partner.exchange(self.step, held.own)

    def _pause(self) -> None:
        """Go on once others have taken the place of ranks that leave; one of these ends here."""
        self._group.rest()
        if self._membership.leaves:
            self._membership.leave(self.step, self._held[self.step].own)
            sys.exit()
        self._join()

    def _recovers(self, trouble: BaseException) -> bool:
        """Return whether ranks are replaced, and if so, go on with them."""
        if not self._membership.await_replaced(SETTLE_S):
            return False
        # What the failed calls have begun would keep connections open, and who waits for this rank would go on waiting.
        traceback.clear_frames(trouble.__traceback__)
        self._join()
        return True

    def _join(self) -> None:
        """Form a group with those that make up the launch, and go on from what they have in common."""
        while True:
            self._group.stop()  # if its device is lost, this rank is: its error is its own
            try:
                if self._held:
                    self._group.let_go()
                # What the program has drawn ahead is in its own hands, and cannot be drawn again.
                is_known = self._position.is_known
                have = tuple(step for step, held in self._held.items() if is_known and held.own)
                own = have if self._held else self._own.steps()
                self._membership.report(self._group.handle, have, own, self._partner.kept, self._kept.alike)
                if (formation := self._membership.await_formation()) is None:
                    continue
                self._group.connect(list(formation.handles))
                self._take_over(formation)
                dist.barrier()
                self._membership.formed()
            except _TROUBLE as trouble:
                if not self._membership.await_replaced(SILENCE_S):
                    raise
                traceback.clear_frames(trouble.__traceback__)
            else:
                return

    def _take_over(self, formation: Formation) -> None:
        """Go back to the step that all have, or take its state over from another rank."""
        step, rank = formation.step, self._membership.rank
        source = formation.sources.get(str(rank))
        for each in [int(behind) for behind, of_it in formation.sources.items() if of_it == rank]:
            held = self._held[step]
            data = encode("state", {"parts": held.parts, "layout": held.layout}).joined()
            for sent in self._group.begin_to_send(data, each):
                sent.wait(dist.default_pg_timeout)
        if source is not None:
            received = self._group.receive(source)
            held = _Held(**decode("state", [received]), own=self._membership.handed_over(step) or self._own.get(step))
        else:
            held = self._held[step]
        own = decode("own", [held.own])  # it is known of all steps that are reported
        if source is not None:
            self._position.load_state_dict(own["position"], step)
        self._kept.go_back(held.layout)
        self._model.zero_grad(set_to_none=True)
        for name, part in self._parts.items():
            part.load_state_dict(from_blocks(_copied(held.parts[name]), like_of(part)))
        self._kept.take_own(own["model"])
        restore_random_states(own["random"])
        self.step = step
        self._draws.go_back(step)
        self._held.clear()
        self._partner = Partner(self._group)  # which has kept what is of other steps now
        self._keep(held)


def steps_from(
    step: int,
    model: torch.nn.Module,
    parts: Mapping[str, Any],
    position: Position,
    draws: Draws,
    *,
    has_others: bool,
) -> Steps:
    """Return the steps of a training from one on; those of a kept group where that is possible.

    Parameters
    ----------
    step
        The step to run next.
    model, parts
        The model as the program uses it, and all that has a state.
    position, draws
        Where the training is in its data, and what it has drawn of it.
    has_others
        Whether it is not known of some parts that they are alike on all ranks.
    """
    if (group := kept_group()) is None:
        return Steps(step)
    if why := why_not(model, parts, has_others=has_others):
        group.membership.offer(why)
        return Steps(step)
    return KeptSteps(step, model, parts, position, draws, group)


def _copied(tree: Any) -> Any:
    """Return a state_dict with tensors of its own."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, Block):
        return Block(_copied(tree.data), tree.region, tree.shape)
    return mapped(_copied, tree)
