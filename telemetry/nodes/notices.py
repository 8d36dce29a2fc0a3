"""What a telemetry process tells the user: that it was started again, or has no room for what it was asked to keep."""

from __future__ import annotations

import logging

import redis

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.control import Control
from laggard.kvstore.errors import KVStoreError

_log = logging.getLogger("laggard.telemetry")


def tell_if_restarted(session: Session, name: str, sentence: str) -> bool:
    """Tell the user, in the job's account and as an event, if a process of this name has run on this node before."""
    mark = session.environment.endpoint_file.parent / f"{name}.began"
    if not mark.exists():
        mark.touch(mode=0o600)
        return False
    tell(session, sentence)
    return True


def tell(session: Session, sentence: str) -> None:
    """Tell the user something, in the job's account and as an event."""
    try:
        launch = current_launch(session.client, session.endpoint)
        if launch is not None:
            Control(session.client, session.endpoint, launch).ask("notices", [sentence])
    except (KVStoreError, redis.RedisError) as error:
        _log.warning("%s (could not be told: %s)", sentence, error)
