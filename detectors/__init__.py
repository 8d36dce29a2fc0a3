"""Verdicts: which device is slow, and how certain that is.

Names are loaded on first use: a light module below this one loads neither NumPy nor what only a job needs.

Words: a *source* is where samples come from; a *label* says who are peers; a *cross-section* is one look without
history. A *finding* is what is known of a device in one round, an *episode* a time in which it is slow, a *place* its
position in a launch, by which ranks usually go.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
