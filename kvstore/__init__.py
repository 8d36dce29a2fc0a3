"""State, series and control records in a Redis-compatible server."""
