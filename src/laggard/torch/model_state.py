"""What of a model is saved: all of its weights, or those with the right names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from laggard.kvstore.checkpoints.resharding import with_items

_log = logging.getLogger("laggard.torch")


class ModelState:
    """A module, as something whose state is part of a checkpoint."""

    def __init__(self, module: torch.nn.Module, weights: Callable[[str], bool] | None, *, strict: bool) -> None:
        self.module = module
        self._is_saved = weights or (lambda _: True)
        self._strict = strict

    def state_dict(self) -> dict[str, Any]:
        """Return the weights that are saved."""
        state = self.module.state_dict()
        return with_items(state, [(name, value) for name, value in state.items() if self._is_saved(name)])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over weights; those that are not saved stay as the program has made them."""
        state.update({name: value for name, value in self.module.state_dict().items() if not self._is_saved(name)})
        found = self.module.load_state_dict(state, strict=self._strict)
        for what, names in (("has not", found.missing_keys), ("alone has", found.unexpected_keys)):
            if names:
                _log.warning("the checkpoint %s: %s (strict=False)", what, ", ".join(names))
