"""State, series and control records in a Redis-compatible server.

``State``, ``Checkpointer`` and what belongs to them are loaded on first use, with NumPy and the server's client: a
node's agent, which needs none of these, starts quickly.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
