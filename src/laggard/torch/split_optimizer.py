"""``ZeroRedundancyOptimizer``: each rank has the state of those parameters that it updates, and saves that."""

from __future__ import annotations

from typing import Any

_NAME = "ZeroRedundancyOptimizer"  # importing it takes a second


class SplitOptimizer:
    """Such an optimizer, as something whose state is this rank's own."""

    def __init__(self, optimizer: Any) -> None:
        if optimizer._overlap_with_ddp:
            raise TypeError(f"{_NAME} with overlap_with_ddp=True is not supported; leave that out")
        self._optimizer = optimizer

    @classmethod
    def is_one(cls, part: object) -> bool:
        """Return whether something is one."""
        return _NAME in [kind.__name__ for kind in type(part).__mro__]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's parameters, without asking the others for theirs."""
        own = self._optimizer.optim
        self._optimizer._sync_param_groups(self._optimizer.param_groups, own.param_groups)  # a scheduler changes these
        return dict(own.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, which the same number of ranks have divided."""
        own = self._optimizer.optim
        own.load_state_dict(state)
        self._optimizer._sync_param_groups(own.param_groups, self._optimizer.param_groups)
