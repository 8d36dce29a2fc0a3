"""Reads what a launch's program shows of itself in the state server."""

from __future__ import annotations

import redis

from laggard.kvstore.client.connection import Session
from laggard.kvstore.control import Control, Signs
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.state.mapping import State


class LaunchSigns:
    """The signs of the launch that this process belongs to."""

    def __init__(self, session: Session) -> None:
        launch = session.environment.launch
        self._control = Control(session.client, session.endpoint, launch)
        self._state = State(session.client, session.endpoint, launch, retry_for_s=0)

    def read(self) -> Signs | None:
        """Return the signs by now; ``None`` if the server does not answer at once."""
        try:
            step, checkpointed = self._control.read_progress(), self._control.read_progress("checkpointed")
            return Signs(
                self._state.commits(),
                None if step is None else float(step),
                None if checkpointed is None else float(checkpointed),
                self._control.read_phases(),
                self._control.read_reserve(),
            )
        except (redis.RedisError, StateUnavailableError):
            return None
