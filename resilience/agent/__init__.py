"""What runs on every node: the agent, and the helpers that it starts.

The agent talks to the controller, and to the state server only to raise its count there (:mod:`.second_path`); it does
not import Ray. The helpers (``detect``, ``reserve_probe``) are processes of their own that use the state server.
"""

__all__ = ["DIALS"]

DIALS = "--dials"
"""Tells an agent that an invitation comes through its standard input, and nothing else."""
