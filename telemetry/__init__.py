"""Metrics of the program: sent with Telemetry, read with AnalysisClient.

Both are loaded on first use, with NumPy and the state server's client, so that the errors can be imported without them.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
