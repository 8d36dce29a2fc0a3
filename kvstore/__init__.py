"""State, series and control records in a Redis-compatible server."""

from kvstore.errors import FencedError
from kvstore.state import State

__all__ = ["FencedError", "State"]
